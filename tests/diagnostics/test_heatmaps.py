"""What the figure shows: one scale for both masses, gold cells, questions drawn by the seed alone."""

from dataclasses import replace

import numpy as np
import pytest

from warrant_hf.diagnostics import heatmap_figure, save_heatmaps
from warrant_hf.diagnostics.heatmaps import draw_cases

pytest.importorskip("matplotlib")


def panels(figure):
    return {axis.get_title(): axis for axis in figure.axes if axis.get_title()}


def test_colour_scales(decided):
    cases = decided[1].learned
    found = panels(heatmap_figure(cases))
    largest = max(case.attention.max() for case in cases)
    limits = {name: axis.images[0].get_clim() for name, axis in found.items()}
    assert limits["attention"] == limits["effective mass"] == (0, pytest.approx(largest))
    assert limits["permission"] == (0, 1)
    assert found["attention"].images[0].get_cmap() == found["effective mass"].images[0].get_cmap()


def test_cells_are_the_values_and_gold_is_outlined(decided):
    cases = decided[1].learned
    for name, axis in panels(heatmap_figure(cases)).items():
        grid = axis.images[0].get_array()
        for row, case in enumerate(cases):
            count = len(case.labels)
            np.testing.assert_array_equal(grid[row, :count], getattr(case, name.partition(" ")[0]))
            assert grid.mask[row, count:].all()
        outlined = {(patch.get_y() + 0.5, patch.get_x() + 0.5) for patch in axis.patches}
        assert outlined == {(row, at) for row, case in enumerate(cases) for at in np.flatnonzero(case.labels)}


def test_the_draw_does_not_look_at_the_values(random_cases):
    cases = random_cases(50)
    ids = [case.id for case in draw_cases(cases, 10, seed=3)]
    changed = [replace(case, labels=1 - case.labels, attention=case.attention[::-1]) for case in cases]
    assert [case.id for case in draw_cases(changed, 10, seed=3)] == ids == sorted(ids, key=int)
    assert ids != [case.id for case in draw_cases(cases, 10, seed=4)] and len(set(ids)) == 10
    assert len(draw_cases(cases, 99)) == 50
    with pytest.raises(ValueError, match="0 cases, count 1"):
        draw_cases([], 1)


@pytest.mark.parametrize("name, start", [("h.png", b"\x89PNG"), ("h.svg", b"<?xml")])
def test_files(random_cases, tmp_path, name, start):
    ids = save_heatmaps(tmp_path / name, random_cases(5), count=3, seed=1)
    assert len(ids) == 3 and (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_other_names_are_refused(random_cases, tmp_path):
    with pytest.raises(ValueError, match="h.pdf is no name for a heatmap; give one that ends in .png or .svg"):
        save_heatmaps(tmp_path / "h.pdf", random_cases(2))
    assert list(tmp_path.iterdir()) == []
