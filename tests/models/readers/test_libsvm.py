"""LIBSVM's text format: what is read, and what is refused with its line."""

import numpy as np
import pytest
import torch

from cutset.models.readers.libsvm import read_libsvm
from cutset.models.task import TaskError

GOOD = "+1 1:0.5 3:-2e1 # a comment\n\n# only a comment\n-1\n +1 2:.5\t4:1. \r\n"


def rows_of(tmp_path, text):
    path = tmp_path / "data"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_libsvm(path)


def test_numbers_comments_and_blank_lines(tmp_path):
    rows = rows_of(tmp_path, GOOD)
    assert len(rows) == 3
    assert rows.labels.tolist() == [1, -1, 1]
    assert rows.lines.tolist() == [1, 4, 5]
    assert (rows.features, rows.max_entries) == (4, 2)
    assert rows.counts(5).tolist() == [0, 1, 1, 1, 1, 0]
    assert rows.classes() == [-1, 1]
    data = rows.data([-1.0, 1.0], features=4, entries=3)
    assert data.inputs[0].tolist() == [[1, 3, 0], [0, 0, 0], [2, 4, 0]]
    assert data.inputs[1].tolist() == [[0.5, -20, 0], [0, 0, 0], [0.5, 1, 0]]
    assert data.targets[0].tolist() == [1, 0, 1]
    assert [t.dtype for t in (*data.inputs, *data.targets)] == [torch.int64, torch.float32, torch.int64]


def test_what_was_written_is_read_again(tmp_path):
    generator = np.random.default_rng(0)
    dense = generator.normal(size=(60, 25)) * (generator.random((60, 25)) < 0.3)
    labels = generator.integers(0, 3, 60)
    lines = [
        " ".join([str(label), *(f"{j + 1}:{value!r}" for j, value in enumerate(row) if value)])
        for label, row in zip(labels.tolist(), dense.tolist(), strict=True)
    ]
    rows = rows_of(tmp_path, "\n".join(lines))
    indices, values = rows.pad(rows.max_entries)
    found = torch.zeros(60, 26).scatter_add_(1, indices, values)[:, 1:]
    assert torch.equal(found, torch.from_numpy(dense).to(torch.float32))
    assert rows.labels.tolist() == labels.tolist()
    assert rows.classes() == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("one 1:2", "begins with 'one', which is no label"),
        ("1 1:2 3", "'3' is no index:value"),
        ("1 1:2 3:x", "'3:x' is no index:value"),
        ("1 1:2:3", "'1:2:3' is no index:value"),
        ("1 -1:2", "'-1:2' is no index:value"),
        ("1 1:nan", "'1:nan' is no index:value"),
        ("nan 1:2", "begins with 'nan', which is no label"),
        ("1 qid:3 1:2", "'qid:3' is no index:value"),
        ("1 1:1e999", "a value that is too large for a number"),
        ("1e999 1:1", "a label that is too large for a number"),
        ("1 0:2", "index 0; features are numbered from 1"),
        ("1 3:1 2:1", "index 2 comes after 3"),
        ("1 3:1 3:1", "index 3 comes after 3"),
        (b"\xff\xfe", "begins with"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, facts):
    line = line if isinstance(line, bytes) else line.encode()
    with pytest.raises(TaskError) as caught:
        rows_of(tmp_path, b"1 1:2\n# three\n" + line + b"\n-1 2:3\n")
    assert f"{tmp_path / 'data'}:3: " in caught.value.facts
    assert facts in caught.value.facts
    assert caught.value.fix


def test_what_training_has_not_seen_is_named_with_its_line(tmp_path):
    rows = rows_of(tmp_path, "1 1:2\n-1 2:1 9:1\n2 1:1\n")
    with pytest.raises(TaskError, match=r"data:3: label 2 is none of the training file's: -1, 1"):
        rows.data([-1.0, 1.0], features=9, entries=2)
    with pytest.raises(TaskError, match=r"data:2: index 9; there are 8 features"):
        rows.data([-1.0, 1.0, 2.0], features=8, entries=2)


def test_files_that_hold_no_classification_are_refused(tmp_path):
    with pytest.raises(TaskError, match="has no samples"):
        rows_of(tmp_path, "\n# nothing\n")
    with pytest.raises(TaskError, match="has label 1 alone"):
        rows_of(tmp_path, "1 1:2\n1 2:3\n").classes()
    with pytest.raises(TaskError, match="has 1001 different labels; a classification has 2 to 1000"):
        rows_of(tmp_path, "\n".join(f"{i / 3} 1:1" for i in range(1001))).classes()
    with pytest.raises(TaskError, match="nowhere cannot be read: No such file"):
        read_libsvm(tmp_path / "nowhere")
