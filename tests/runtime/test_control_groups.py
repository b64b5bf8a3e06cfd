"""Control groups: those around this process, innermost first, whatever a container shows of them."""

from pathlib import Path

from runtime.fake_groups import UNIFIED, make_system, version_1

from tfds_torch.runtime.control_groups import group_folders, read_table, read_word


def names(root: Path, controller: str = "memory") -> list[str]:
    """Returns the folders' paths below /sys/fs/cgroup."""
    return [str(folder.relative_to(root / "sys/fs/cgroup")) for folder in group_folders(controller, root)]


def test_version_2_has_one_hierarchy_for_all(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/a/b", UNIFIED, {"a/b/memory.max": "max", "a/memory.max": 1, "c/memory.max": 1})
    assert names(root) == names(root, "cpu") == ["a/b", "a", "."]


def test_version_1_has_one_for_each_controller(tmp_path: Path) -> None:
    files = {"memory/a/b/tasks": "", "cpu/c/tasks": "", "memory/c/tasks": ""}
    root = make_system(
        tmp_path, "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/", f"{version_1('memory')}\n{version_1('cpu')}", files
    )
    assert names(root) == ["memory/a/b", "memory/a", "memory"]
    assert names(root, "cpu") == ["cpu/c", "cpu"]


def test_a_container_that_is_shown_only_its_own_part_finds_it(tmp_path: Path) -> None:
    """Without a namespace of its own the path is the machine's; what is mounted begins at the container's."""
    mounts = version_1("memory", "/docker/4711")
    root = make_system(tmp_path, "4:memory:/docker/4711/job", mounts, {"memory/job/tasks": ""})
    assert names(root) == ["memory/job", "memory"]


def test_a_group_outside_of_what_is_shown_leaves_the_outermost(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/../../other", UNIFIED, {"memory.max": 1})
    assert names(root) == ["."]


def test_folders_that_are_not_shown_are_left_out(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/kubepods/pod/1", UNIFIED, {"kubepods/memory.max": 1})
    assert names(root) == ["kubepods", "."]


def test_both_versions_side_by_side_are_both_looked_at(tmp_path: Path) -> None:
    mounts = f"{version_1('memory')}\n{UNIFIED.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}"
    root = make_system(tmp_path, "4:memory:/a\n0::/u", mounts, {"memory/a/tasks": "", "unified/u/cgroup.procs": ""})
    assert names(root) == ["memory/a", "memory", "unified/u", "unified"]


def test_a_mount_point_with_a_blank_is_found(tmp_path: Path) -> None:
    root = make_system(tmp_path, "0::/", UNIFIED.replace("/sys/fs/cgroup", r"/sys/fs/cgroup/my\040groups"), {})
    (root / "sys/fs/cgroup/my groups").mkdir(parents=True)
    assert names(root) == ["my groups"]


def test_a_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert group_folders("memory", tmp_path) == []
    assert group_folders("memory", make_system(tmp_path, "", "", {})) == []


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    assert read_word(tmp_path / "memory.max") is None
    assert read_table(tmp_path / "memory.stat") == {}
    (tmp_path / "empty").write_text("")
    assert read_word(tmp_path / "empty") is None
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 7\n")
    assert read_table(tmp_path / "memory.stat") == {"anon": 5, "inactive_file": 7}
