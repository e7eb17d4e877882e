"""Which patch of the image an object is in."""

import pytest

torch = pytest.importorskip("torch")

from vla_ros_lab.train.frames import NOWHERE, patch_labels, patches_of


def test_a_patch_is_labelled_by_the_object_centered_in_it():
    nan = float("nan")
    pixels = torch.tensor([[[[4.0, 4.0], [31.9, 8.0], [nan, nan], [-1.0, 5.0], [32.0, 0.0]]]])
    labels = patch_labels(pixels, side=4, patch=8)
    expected = torch.zeros(1, 16, dtype=torch.long)
    expected[0, 0], expected[0, 4 + 3] = 1, 2
    assert torch.equal(labels, expected)


def test_two_images_have_labels_behind_each_other_and_the_later_object_wins():
    pixels = torch.tensor([[[[1.0, 1.0], [2.0, 2.0]], [[9.0, 1.0], [1.0, 9.0]]]])
    labels = patch_labels(pixels, side=2, patch=8)
    assert labels.tolist() == [[2, 0, 0, 0, 0, 1, 2, 0]]


def test_places_are_patches_of_the_things_and_nowhere_outside():
    pixels = torch.tensor([[[4.0, 4.0], [31.9, 8.0], [float("nan"), 0.0], [40.0, 5.0]]])
    things = torch.tensor([[[0, 1], [1, NOWHERE], [2, 3]]])
    places = patches_of(pixels, things, side=4, patch=8)
    assert places.tolist() == [[[0, 7], [7, NOWHERE], [NOWHERE, NOWHERE]]]
