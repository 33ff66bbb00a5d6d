"""Built-in questions of the Space and of `warrant-hf demo --text`. All texts are our own."""

from __future__ import annotations

# Two passages together hold the answer; the others share its words. This one is shown by `warrant-hf demo --text`.
COMPARISON = (
    "Which of the two bands was formed first, Low Tide or Northern Lamp?",
    [
        {"title": "Bergen", "text": "Bergen is a city on the west coast of Norway with many rock bands."},
        {"title": "Northern Lamp", "text": "Northern Lamp is an indie band formed in Leeds in 2003."},
        {"title": "Low tide", "text": "Low tide is the point at which the sea is at its lowest level."},
        {"title": "Low Tide", "text": "Low Tide is a rock band formed in Bergen in 1994."},
        {"title": "Low Tide (album)", "text": "The band's second album was released in 1998 and sold poorly."},
    ],
)

# The second passage is evidence only for who has read the first: hard for a model that reads each passage by itself.
BRIDGE = (
    "In which country was the designer of the Hallam Bridge born?",
    [
        {
            "title": "Hallam Bridge",
            "text": "The Hallam Bridge is a steel arch bridge over the River Orne. It was designed by the engineer "
            "Ilse Varga and opened to traffic in 1931.",
        },
        {
            "title": "Ilse Varga",
            "text": "Ilse Varga was a structural engineer. She was born in Szeged, Hungary, and moved to England "
            "to study in 1909.",
        },
        {
            "title": "Hallam",
            "text": "Hallam is a market town on the River Orne. Its best-known sights are a steel bridge and a "
            "wool market that dates from 1640.",
        },
        {
            "title": "Oskar Varga",
            "text": "Oskar Varga was a Hungarian painter who lived in Vienna. His sister was an engineer.",
        },
        {
            "title": "Tannery Bridge",
            "text": "The Tannery Bridge was designed by Peter Lund, an engineer who was born in Denmark.",
        },
        {
            "title": "River Orne",
            "text": "The River Orne rises in the chalk hills and is 74 kilometres long. Barges use its lower part.",
        },
    ],
)

# Every passage is about the subject, none tells the year: the list should be found wanting.
NO_EVIDENCE = (
    "In what year did the Marlow Observatory install its first radio telescope?",
    [
        {
            "title": "Marlow Observatory",
            "text": "The Marlow Observatory stands on a hill south of the town. It is open to visitors on Fridays.",
        },
        {
            "title": "Marlow Observatory",
            "text": "The first director of the observatory, Edith Crane, was known for her work on variable stars.",
        },
        {
            "title": "Radio telescope",
            "text": "A radio telescope is an antenna with a receiver that detects radio waves from the sky.",
        },
        {
            "title": "Dunmore Observatory",
            "text": "In 1957 the Dunmore Observatory installed a radio telescope with a dish of 25 metres.",
        },
    ],
)

# The same fact three times: close one gate and see whether the others carry on.
REPEATED = (
    "Who discovered the comet Arden-Pohl together with Miriam Arden?",
    [
        {
            "title": "Arden-Pohl",
            "text": "Arden-Pohl is a comet that was discovered by Miriam Arden and Georg Pohl in March 1974.",
        },
        {
            "title": "Georg Pohl",
            "text": "Georg Pohl is an astronomer who found the comet Arden-Pohl with Miriam Arden.",
        },
        {
            "title": "Comets of 1974",
            "text": "Four comets were found in 1974, among them Arden-Pohl, seen first by Arden and Pohl.",
        },
        {"title": "Miriam Arden", "text": "Miriam Arden taught physics in Leeds and observed meteors every August."},
        {"title": "Pohl crater", "text": "Pohl is an impact crater on the far side of the Moon, 31 kilometres wide."},
    ],
)

# Names differ in one word: attention goes to all of them, support does not.
LOOKALIKES = (
    "Which river flows through the capital of the province of North Selve?",
    [
        {"title": "North Selve", "text": "North Selve is a province in the north. Its capital is the city of Brandt."},
        {"title": "South Selve", "text": "South Selve is a province on the coast. Its capital is the city of Carrow."},
        {"title": "Brandt", "text": "Brandt is a city of 210,000 people. The river Ilm flows through its old town."},
        {"title": "Carrow", "text": "Carrow is a port. The river Teel flows through the city and into the sea."},
        {"title": "Ilm", "text": "The Ilm is a river that rises in the Selve mountains and is 190 kilometres long."},
        {"title": "Brandt Castle", "text": "Brandt Castle was the seat of the counts of Selve until the year 1803."},
    ],
)

# Something is read, because attention sums to one; nothing of it tells the number.
MISSING = (
    "How many people live in Brandt?",
    [
        {
            "title": "People of Brandt",
            "text": "How many people live in Brandt was the subject of a long debate in the town council.",
        },
        {"title": "Census", "text": "A census counts how many people live in a country."},
        {"title": "Brandt Castle", "text": "The castle of Brandt was built by the counts of Selve."},
        {"title": "Brandt market", "text": "The market of Brandt is held on Saturdays in front of the town hall."},
    ],
)

# The same list, but one passage tells it, in other words than the question.
SUPPORTED = (
    MISSING[0],
    [*MISSING[1][:1], {"title": "Brandt", "text": "Brandt is a town with a population of 41,000."}, *MISSING[1][1:]],
)

# The first passage repeats the question almost word for word and says nothing about it.
TRAP = (
    "What is the capital of the province of Selve?",
    [
        {
            "title": "Capital",
            "text": "A capital is the city in which the government of a country or province sits. What is the capital "
            "of a province is decided by law.",
        },
        {"title": "Selve", "text": "Selve is a province in the north. Its capital is the city of Brandt."},
        {"title": "Capital letter", "text": "A capital letter is used at the beginning of a sentence."},
        {"title": "Province", "text": "A province is a part of a country."},
    ],
)

_PORTS = ("Alm", "Berrin", "Carrow", "Dunmore", "Elsby", "Fenwick")
_ISLANDS = (
    "Aske", "Borrow", "Calder", "Drumm", "Eda", "Farrow", "Gale", "Harn", "Inver", "Jura Minor", "Kell", "Lund",
    "Marr", "Norby", "Ostra", "Penn", "Quill", "Rona", "Sulby", "Tarn", "Ulva Sound", "Vane", "Wick", "Yarrow",
)  # fmt: skip

# One sentence in twenty-four, all of one form: an even share of the attention is four per cent.
LONG = (
    "From which port does the ferry to the island of Tarn leave?",
    [
        {"title": island, "text": f"The ferry to the island of {island} leaves from {_PORTS[at % len(_PORTS)]}."}
        for at, island in enumerate(_ISLANDS)
    ],
)

EXAMPLES = {
    "Something is always read": MISSING,
    "The same, with an answer": SUPPORTED,
    "Same words, no support": TRAP,
    "Two passages hold the answer": COMPARISON,
    "One passage leads to the other": BRIDGE,
    "Names that look alike": LOOKALIKES,
    "One fact, three times": REPEATED,
    "No passage answers": NO_EVIDENCE,
    "A long list": LONG,
}


def as_text(passages: list[dict]) -> str:
    """Passages in the notation of the Space's text box, see `inputs.read_passages`."""
    return "\n\n".join(f"# {passage['title']}\n{passage['text']}" for passage in passages)
