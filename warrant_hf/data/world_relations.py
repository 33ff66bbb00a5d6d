"""The relations of EvidenceWorld and the words in which they are stated and asked for."""

from __future__ import annotations

from typing import NamedTuple


class Relation(NamedTuple):
    """A functional relation: a subject has one object.

    `statements` hold `{s}` and `{o}`; `phrases` are noun phrases for the object, with `{}` for the subject, and nest.
    """

    name: str
    subject: str
    object: str
    statements: tuple[str, ...]
    phrases: tuple[str, ...]


RELATIONS = (
    Relation(
        "birthplace",
        "person",
        "city",
        ("{s} was born in {o}.", "{s} came into the world in {o}.", "The birthplace of {s} is {o}."),
        ("the birthplace of {}", "the city where {} was born"),
    ),
    Relation(
        "employer",
        "person",
        "company",
        ("{s} works for {o}.", "{s} has been on the staff of {o} for years.", "The employer of {s} is {o}."),
        ("the employer of {}", "the company that {} works for"),
    ),
    Relation(
        "spouse",
        "person",
        "person",
        ("{s} is married to {o}.", "{s} and {o} are a married couple.", "{o} is the spouse of {s}."),
        ("the spouse of {}", "the person married to {}"),
    ),
    Relation(
        "alma_mater",
        "person",
        "university",
        ("{s} studied at {o}.", "{s} holds a degree from {o}.", "{o} counts {s} among its graduates."),
        ("the alma mater of {}", "the university where {} studied"),
    ),
    Relation(
        "country",
        "city",
        "country",
        ("{s} is a city in {o}.", "{s} lies in the south of {o}.", "{s} belongs to {o}."),
        ("the country of {}", "the country in which {} lies"),
    ),
    Relation(
        "mayor",
        "city",
        "person",
        ("{o} is the mayor of {s}.", "The mayor of {s} is {o}.", "{s} elected {o} as its mayor."),
        ("the mayor of {}", "the person elected mayor of {}"),
    ),
    Relation(
        "city_founded",
        "city",
        "year",
        ("{s} was first settled in {o}.", "The first settlers of {s} came in {o}.", "{s} goes back to a camp of {o}."),
        ("the year in which {} was first settled", "the year of the first settlement at {}"),
    ),
    Relation(
        "founder",
        "company",
        "person",
        ("{s} was founded by {o}.", "{o} is the founder of {s}.", "{o} started {s} in a garage."),
        ("the founder of {}", "the person who started {}"),
    ),
    Relation(
        "headquarters",
        "company",
        "city",
        ("{s} has its headquarters in {o}.", "{s} is run from offices in {o}.", "{s} is based in {o}."),
        ("the city where {} is based", "the city that houses the headquarters of {}"),
    ),
    Relation(
        "company_founded",
        "company",
        "year",
        ("{s} opened for business in {o}.", "{s} has existed since {o}.", "{s} was registered in {o}."),
        ("the year in which {} opened for business", "the year since which {} has existed"),
    ),
    Relation(
        "director",
        "film",
        "person",
        ("{s} was directed by {o}.", "{o} directed {s}.", "{s} is a film by the director {o}."),
        ("the director of {}", "the person who directed {}"),
    ),
    Relation(
        "composer",
        "film",
        "person",
        ("The music of {s} is by {o}.", "{o} composed the score of {s}.", "{s} has a score by {o}."),
        ("the composer of the music in {}", "the person who wrote the score of {}"),
    ),
    Relation(
        "release_year",
        "film",
        "year",
        ("{s} was released in {o}.", "{s} reached the cinemas in {o}.", "{s} had its premiere in {o}."),
        ("the release year of {}", "the year in which {} reached the cinemas"),
    ),
    Relation(
        "author",
        "novel",
        "person",
        ("{s} was written by {o}.", "{o} wrote {s}.", "{o} is the author of {s}."),
        ("the author of {}", "the person who wrote {}"),
    ),
    Relation(
        "publisher",
        "novel",
        "company",
        ("{s} was published by {o}.", "{o} brought out {s}.", "{s} appeared in print with {o}."),
        ("the publisher of {}", "the company that published {}"),
    ),
    Relation(
        "setting",
        "novel",
        "city",
        ("{s} is set in {o}.", "The story of {s} takes place in {o}.", "{s} describes daily life in {o}."),
        ("the city in which {} is set", "the city where the story of {} takes place"),
    ),
    Relation(
        "campus",
        "university",
        "city",
        ("The campus of {s} is in {o}.", "{s} teaches its students in {o}.", "{s} stands in the middle of {o}."),
        ("the city where {} has its campus", "the seat of {}"),
    ),
    Relation(
        "rector",
        "university",
        "person",
        ("{s} is led by its rector {o}.", "{o} serves as rector of {s}.", "The rector of {s} is {o}."),
        ("the rector of {}", "the person who leads {}"),
    ),
    Relation(
        "capital",
        "country",
        "city",
        ("The capital of {s} is {o}.", "{o} is the capital of {s}.", "{s} is governed from its capital {o}."),
        ("the capital of {}", "the city from which {} is governed"),
    ),
    Relation(
        "currency",
        "country",
        "currency",
        ("{s} pays with the {o}.", "The currency of {s} is the {o}.", "The {o} is legal tender in {s}."),
        ("the currency of {}", "the money used in {}"),
    ),
)

BY_SUBJECT = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind)
    for kind in dict.fromkeys(relation.subject for relation in RELATIONS)
}

# Relations in which two subjects cannot well have the same object.
EXCLUSIVE = frozenset({"spouse", "mayor", "capital", "rector"})

QUESTIONS = {
    "person": ("Who is {}?", "What is the name of {}?", "Can you tell me who {} is?"),
    "year": ("What is {}?", "Can you find {}?", "Do you know {}?"),
    "other": ("What is {}?", "What is the name of {}?", "Do you know the name of {}?"),
}
