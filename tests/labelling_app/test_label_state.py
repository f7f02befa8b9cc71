"""The actions as pure functions, against a plain dictionary per image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcal.app import label_state as states
from promptcal.app.actions import AcceptRefit, parse_action
from promptcal.app.label_state import GIVEN, LABELLED, NONE, UNLABELLED, LabelState, NameTakenError, Predictions
from promptcal.errors import LabelError
from promptcal.run.assignments import Assignments


def assignments(clusters=(0, 0, 1, 1, 2, 2, 2, 0), labelled=(1, 0, 0, 0, 0, 0, 0, 0)):
    n = len(clusters)
    return Assignments(
        [f"{i}.png" for i in range(n)], np.array(clusters), np.linspace(0.9, 0.4, n), ["cat", "new-1", "new-2"],
        [True, False, False], np.array(labelled, dtype=bool), np.full(n, 1), np.full(n, 0.1), stability=np.ones(n),
    )  # fmt: skip


@pytest.fixture
def state():
    return LabelState.of(assignments())


def test_a_run_without_actions_has_its_own_labels_only(state):
    assert state.label_names() == ["cat", *[None] * 7]
    assert state.category.tolist() == [0, 0, 1, 1, 2, 2, 2, 0]
    assert state.status.tolist() == [GIVEN, *[UNLABELLED] * 7]


def test_assign_none_and_remove(state):
    after = states.remove_labels(states.none_of_these(states.assign(state, [2, 3], 0), [3, 4]), [4, 0])
    assert after.label_names() == [None, None, "cat", "", None, None, None, None]
    assert after.category.tolist() == [0, 0, 0, -1, 2, 2, 2, 0]
    assert after.status.tolist()[:5] == [UNLABELLED, UNLABELLED, LABELLED, NONE, UNLABELLED]
    assert state.label_names() == ["cat", *[None] * 7]  # the state before is as it was


def test_a_named_category_labels_its_images_but_not_those_that_were_taken_out(state):
    after = states.rename(states.none_of_these(state, [6]), 2, "  great tit ")
    assert after.categories[2].name == "great tit"
    assert after.label_names() == ["cat", None, None, None, "great tit", "great tit", "", None]


def test_a_merge_into_a_known_class_gives_labels_and_into_a_new_one_confirms_it(state):
    into_known = states.merge(state, 1, 0)
    assert into_known.label_names() == ["cat", None, "cat", "cat", None, None, None, None]
    assert into_known.active == [0, 2]
    assert (into_known.predictions.second == 0).all()  # the second best was the merged category
    into_new = states.merge(state, 1, 2)
    assert into_new.label_names() == ["cat", None, *["new-2"] * 5, None]
    of_known = states.merge(state, 0, 2)  # also the labels that came with the run
    assert of_known.label_names() == ["new-2", "new-2", None, None, *["new-2"] * 4]


def test_accept_labels_images_as_they_are_shown(state):
    after = states.accept(states.none_of_these(state, [5]), [1, 2, 5])
    assert after.label_names() == ["cat", "cat", "new-1", None, None, "", None, None]


def test_split_of_a_whole_category_keeps_it_for_part_0_and_of_a_selection_makes_new_ones(state):
    whole = states.split(state, [6, 4, 5], [1, 0, 0])
    assert whole.category.tolist() == [0, 0, 1, 1, 2, 2, 3, 0]
    assert whole.label_names()[4:7] == ["new-2", "new-2", "new-3"]
    part = states.split(state, [0, 4], [0, 1])
    assert part.category.tolist() == [3, 0, 1, 1, 4, 2, 2, 0]
    assert part.labels.tolist()[0] == 3  # a labelled image stays labelled
    assert [category.name for category in part.categories[3:]] == ["new-3", "new-4"]


def test_names_are_never_used_twice(state):
    with pytest.raises(NameTakenError, match="there is a category 'CAT' already") as raised:
        states.rename(state, 1, "CAT ")
    assert raised.value.category == 0
    with pytest.raises(NameTakenError):
        states.create(state, "New-2", [0])
    assert states.rename(state, 1, "NEW-1").categories[1].name == "NEW-1"  # its own name in other letters
    merged = states.merge(state, 2, 1)
    assert states.fresh_names(merged, 1) == ["new-3"]  # not the name of a category that was merged, or renamed
    assert states.fresh_names(states.rename(state, 1, "owl"), 1) == ["new-3"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: states.assign(s, [], 0), "no image is selected"),
        (lambda s: states.assign(s, [8], 0), "no image number 8"),
        (lambda s: states.assign(s, [-1], 0), "no image number -1"),
        (lambda s: states.assign(s, [0], 3), "no category number 3"),
        (lambda s: states.assign(states.merge(s, 1, 2), [0], 1), "no category number 1"),
        (lambda s: states.rename(s, 1, " "), "needs a name"),
        (lambda s: states.rename(s, 1, "x" * 201), "may have 200 characters"),
        (lambda s: states.rename(s, 1, "a\0"), "NUL"),
        (lambda s: states.merge(s, 1, 1), "into itself"),
        (lambda s: states.split(s, [0, 1], [0, 0]), "two parts or more"),
        (lambda s: states.split(s, [0, 1], [0, 2]), "two parts or more"),
        (lambda s: states.split(s, [0], [0, 1]), "do not fit"),
        (lambda s: states.split(s, [0, 0], [0, 1]), "given twice"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(state, change, message):
    with pytest.raises(LabelError, match=message):
        change(state)


def test_imported_labels_find_their_categories_and_make_new_ones(state):
    after = states.import_labels(state, {0: "", 3: "CAT", 4: "dog", 5: "dog"})
    assert after.label_names() == ["", None, None, "cat", "dog", "dog", None, None]
    assert [category.name for category in after.categories] == ["cat", "new-1", "new-2", "dog"]


def test_a_refit_replaces_predictions_and_keeps_labels(state):
    labelled = states.none_of_these(states.assign(state, [4], 0), [5])
    found = Predictions(np.full(8, 1), np.full(8, 0.5), np.full(8, -1), np.zeros(8), None)
    action = AcceptRefit.of(["cat", "owl"], found, None)
    after = parse_action(action.model_dump_json()).apply(labelled)
    assert after.category.tolist() == [0, 3, 3, 3, 0, -1, 3, 3]
    assert after.categories[3].name == "owl"
    assert (after.predictions.second == -1).all()
    with pytest.raises(LabelError, match="a category that it does not name"):
        AcceptRefit.of(["cat"], found, None).apply(state)


# -- a plain model: a label and a prediction in a dictionary for each image ---------------------------------


def expected(n_images, clusters, labelled, steps):
    """Labels by name, computed image by image."""
    names = {0: "cat", 1: "new-1", 2: "new-2"}
    known, confirmed = {0}, set()
    predicted = dict(enumerate(clusters))
    label = {i: clusters[i] for i in range(n_images) if labelled[i]}
    for kind, images, a, b in steps:
        a, b = sorted(names)[a % len(names)], sorted(names)[b % len(names)]
        if kind == "assign":
            label.update(dict.fromkeys(images, a))
        elif kind == "none":
            label.update(dict.fromkeys(images, None))
        elif kind == "remove":
            for i in images:
                label.pop(i, None)
        elif kind == "accept":
            label.update({i: label.get(i, predicted[i]) for i in images})
        elif a != b:
            for i in range(n_images):
                if (label[i] if i in label else predicted[i]) == a and b in known:
                    label[i] = b
                if label.get(i) == a:
                    label[i] = b
                predicted[i] = b if predicted[i] == a else predicted[i]
            confirmed.add(b)
            del names[a]
    found = []
    for i in range(n_images):
        if i in label:
            found.append("" if label[i] is None else names[label[i]])
        else:
            found.append(names[predicted[i]] if predicted[i] in confirmed - known else None)
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["assign", "none", "remove", "accept", "merge"]),
            st.lists(st.integers(0, 7), min_size=1, max_size=5),
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        max_size=8,
    )
)
def test_any_sequence_of_actions_gives_the_labels_of_the_plain_model(steps):
    found = assignments()
    state = LabelState.of(found)
    for kind, images, a, b in steps:
        a, b = state.active[a % len(state.active)], state.active[b % len(state.active)]
        before = state
        if kind == "assign":
            state = states.assign(state, images, a)
        elif kind == "none":
            state = states.none_of_these(state, images)
        elif kind == "remove":
            state = states.remove_labels(state, images)
        elif kind == "accept":
            state = states.accept(state, images)
        elif a != b:
            state = states.merge(state, a, b)
        told = set(states.changed_images(before, state).tolist())
        assert told >= set(np.flatnonzero(before.category != state.category).tolist())
    assert state.label_names() == expected(8, found.clusters.tolist(), found.labelled.tolist(), steps)
