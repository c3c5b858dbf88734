from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from simplexcal.demo.lenet5 import LeNet5
from simplexcal.network_spec import (
    NETWORK_ERRORS,
    NetworkSpec,
    first_line,
    load_backbone,
    load_network,
    reraise_as_input_error,
)

NAME = "simplexcal.demo.lenet5:LeNet5"


@pytest.mark.parametrize(("save", "suffix"), [(save_file, ".safetensors"), (torch.save, ".pt")])
def test_a_network_gets_the_weights_of_the_file(
    save: Callable[..., None], suffix: str, tmp_path: Path
) -> None:
    net, path = LeNet5(), tmp_path / f"weights{suffix}"
    save(net.state_dict(), path)
    loaded = load_network(NAME, path)
    assert all(torch.equal(x, loaded.state_dict()[name]) for name, x in net.state_dict().items())


def test_a_module_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_networks_here.py").write_text(
        "from torch import nn\ndef small(): return nn.Linear(2, 3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["elsewhere"])
    net = load_network("own_networks_here:small")
    assert isinstance(net, nn.Linear)


def test_the_current_folder_is_searched_last_and_for_this_module_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, current = tmp_path / "installed", tmp_path / "current"
    installed.mkdir()
    current.mkdir()
    (installed / "shared_name.py").write_text("WHERE = 'installed'\n")
    (current / "shared_name.py").write_text("WHERE = 'current'\n")
    (current / "own_part.py").write_text("")
    (current / "own_networks_last.py").write_text(
        "import shared_name\nfrom torch import nn\n"
        "def small():\n    import own_part\n    return nn.Linear(2, len(shared_name.WHERE))\n"
    )
    monkeypatch.chdir(current)
    path = [str(installed)]
    monkeypatch.setattr("sys.path", path)
    net = load_network("own_networks_last:small")
    assert net.out_features == len("installed")
    assert path == [str(installed)]
    with pytest.raises(ValueError, match="cannot be imported"):
        load_network("no_such_network:small")
    assert path == [str(installed)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("LeNet5", "must have the form package.module:factory"),
        ("no.such.module:net", "'no.such.module', which cannot be imported"),
        ("simplexcal.demo.lenet5:AlexNet", "no function or class of the module"),
        ("torch.nn:Linear", "when called without arguments; it raised TypeError"),
    ],
)
def test_a_wrong_name_is_one_sentence(model: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_network(model)


def test_a_factory_of_something_else_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"must return a torch\.nn\.Module; it returned OrderedDict"
    ):
        load_network("collections:OrderedDict")


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return Path.touch, ("pwned",)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "content", ["garbage", "truncated", "pickle", "another network", "no dict"]
)
def test_a_file_that_is_not_its_weights_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(LeNet5().state_dict(), path)
    if content == "garbage":
        path.write_bytes(b"not weights at all")
    elif content == "truncated":
        path.write_bytes(path.read_bytes()[:1000])
    elif content == "pickle":
        torch.save({"weight": Evil()}, path)
    elif content == "another network":
        torch.save(nn.Linear(2, 2).state_dict(), path)
    else:
        torch.save([1, 2], path)
    with pytest.raises(
        (ValueError, TypeError), match=r"cannot be read as a state dict|another network"
    ) as caught:
        load_network(NAME, path)
    assert "\n" not in str(caught.value)
    assert not Path("pwned").exists()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"'nowhere\.pt' does not exist"):
        load_network(NAME, Path("nowhere.pt"))


def test_a_specification_gives_the_frozen_network(tmp_path: Path) -> None:
    net = LeNet5()
    path = tmp_path / "weights.safetensors"
    save_file(net.state_dict(), path)
    backbone = load_backbone(NetworkSpec(NAME, path))
    x = torch.zeros(2, 1, 28, 28)
    assert torch.equal(backbone(x).logits, net.eval()(x))
    with pytest.raises(ValueError, match="`head` must name a layer of the network; got 'nothing'"):
        load_backbone(NetworkSpec(NAME, path, "nothing"))


@pytest.mark.parametrize("kind", NETWORK_ERRORS)
def test_an_error_of_the_network_becomes_one_about_its_inputs(kind: type[Exception]) -> None:
    with (
        pytest.raises(ValueError, match=r"^The network cannot take three rows: '?first'?$"),
        reraise_as_input_error("three rows"),
    ):
        raise kind("first")


def test_another_error_stays_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), reraise_as_input_error("three rows"):
        raise ZeroDivisionError


def test_only_the_first_line_of_an_error_is_shown() -> None:
    assert first_line(RuntimeError("first\nsecond")) == "first"
    assert first_line(AssertionError()) == "AssertionError"
