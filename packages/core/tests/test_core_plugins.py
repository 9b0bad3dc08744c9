"""Discovery over distributions made up on ``sys.path``, each question in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from rulvar.core.errors import ConfigError, PluginError
from rulvar.core.memory import MemoryJournalStore
from rulvar.core.plugins import installed_stores, load_command, open_stores

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow

GOOD = """
from rulvar.core.spi import Stores, hookimpl

@hookimpl
def rulvar_open_stores(url):
    from rulvar.core.testing import reference_stores
    with url.options() as options:
        return reference_stores(lease_ttl_ms=options.take_int("lease_ttl_ms", 60_000, lowest=1))
"""


class Site:
    """A folder on ``sys.path`` with distributions of a test's own making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        name: str,
        entry_points: str | bytes,
        *,
        modules: Mapping[str, str] = MappingProxyType({}),
        metadata: bool = True,
    ) -> None:
        info = self.folder / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        if metadata:
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n"
            (info / "METADATA").write_text(text, encoding="utf-8")
        data = entry_points.encode() if isinstance(entry_points, str) else entry_points
        (info / "entry_points.txt").write_bytes(data)
        for module, source in modules.items():
            (self.folder / f"{module}.py").write_text(source, encoding="utf-8")

    def ask(self, code: str) -> object:
        """Run ``code`` in a fresh process and return what it assigns to ``answer``."""
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", f"import json\n{code}\nprint(json.dumps(answer))"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: object = json.loads(done.stdout)
        return answer

    def refusal(self, url: str) -> str:
        """Return the type and message that opening a URL raises; ``good://`` still opens."""
        answer = self.ask(
            "from rulvar.core import RulvarError\n"
            "from rulvar.core.plugins import StoreProviders\n"
            "providers = StoreProviders()\n"
            f"try: answer = str(providers.open({url!r}))\n"
            "except RulvarError as error: answer = f'{type(error).__name__}: {error}'\n"
            "try: providers.open('good://').close()\n"
            "except RulvarError as error: assert 'is claimed by' in str(error), error\n"
        )
        assert isinstance(answer, str)
        return answer


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.add("acme-store", "[rulvar.stores]\ngood = good_plugin\n", modules={"good_plugin": GOOD})
    return made


def test_a_store_of_another_distribution_opens(site: Site) -> None:
    answer = site.ask(
        "from rulvar.core import open_stores, assert_fenced_writes\n"
        "with open_stores('good://?lease_ttl_ms=7') as stores:\n"
        "    assert_fenced_writes(stores)\n"
        "    answer = [type(stores.journal).__name__, stores.journal.lease_ttl_ms]\n"
    )
    assert answer == ["ReferenceStore", 7]


def test_a_listing_imports_no_plugin(site: Site) -> None:
    site.add(
        "loud",
        "[rulvar.stores]\nloud = loud_plugin\n[rulvar.commands]\nshout = loud_plugin:main\n",
        modules={"loud_plugin": "raise SystemExit('imported')\n"},
    )
    answer = site.ask(
        "import sys\n"
        "from rulvar.core.plugins import installed_stores, installed_commands\n"
        "stores = {s.scheme: [s.distribution, s.version, s.value, s.problem]\n"
        "          for s in installed_stores()}\n"
        "commands = {c.name: [c.distribution, c.version, c.value, c.problem]\n"
        "            for c in installed_commands()}\n"
        "answer = [stores['good'], stores['loud'], commands['shout'],\n"
        "          'loud_plugin' in sys.modules, 'good_plugin' in sys.modules,\n"
        "          'pluggy' in sys.modules]\n"
    )
    assert answer == [
        ["acme-store", "1.2", "good_plugin", None],
        ["loud", "1.2", "loud_plugin", None],
        ["loud", "1.2", "loud_plugin:main", None],
        False,
        False,
        False,
    ]


BROKEN: list[tuple[str, str, list[str]]] = [
    ("missing", "", ["cannot be loaded", "ModuleNotFoundError"]),
    ("syntax", "def (", ["cannot be loaded", "SyntaxError"]),
    ("raising", "raise ValueError('at import')", ["cannot be loaded", "ValueError: at import"]),
    ("leaving", "raise SystemExit('at import')", ["cannot be loaded", "SystemExit: at import"]),
    ("stopping", "raise KeyboardInterrupt", ["cannot be loaded", "KeyboardInterrupt"]),
    (
        "cancelled",
        "import asyncio\nraise asyncio.CancelledError('no')",
        ["cannot be loaded", "CancelledError: no"],
    ),
    (
        "basic",
        "class Odd(BaseException): ...\nraise Odd('at import')",
        ["cannot be loaded", "Odd: at import"],
    ),
    (
        "guarded",
        (
            "class Touchy:\n    @property\n"
            "    def __class__(self): raise SystemExit('hands off')\n"
            "touchy = Touchy()\n"
        ),
        ["does not fit", "hands off"],
    ),
    (
        "shy",
        (
            "from rulvar.core.spi import hookimpl, Stores\n"
            "class Shy:\n    def __getattr__(self, name): raise SystemExit(0)\n"
            "@hookimpl\ndef rulvar_open_stores(url): return Stores(Shy(), Shy())\n"
        ),
        ["journal.append", "transcripts.list_refs"],
    ),
    (
        "breaking",
        (
            "from rulvar.core.spi import hookimpl\n@hookimpl\n"
            "def rulvar_open_stores(url): raise KeyboardInterrupt\n"
        ),
        ["failed with KeyboardInterrupt"],
    ),
    ("hookless", "x = 1", ["implements no hook", "hookimpl"]),
    (
        "touchy",
        (
            "class Touchy:\n    @property\n"
            "    def __class__(self): raise RuntimeError('hands off')\n"
            "touchy = Touchy()\n"
        ),
        ["does not fit", "hands off"],
    ),
    (
        "misspelt",
        "from rulvar.core.spi import hookimpl\n@hookimpl\ndef rulvar_open_store(url): ...\n",
        ["does not fit", "rulvar_open_store"],
    ),
    (
        "arguments",
        "from rulvar.core.spi import hookimpl\n@hookimpl\ndef rulvar_open_stores(uri): ...\n",
        ["does not fit", "uri"],
    ),
    (
        "nothing",
        "from rulvar.core.spi import hookimpl\n@hookimpl\ndef rulvar_open_stores(url): ...\n",
        ["returned None, not Stores"],
    ),
    (
        "other",
        "from rulvar.core.spi import hookimpl\n@hookimpl\ndef rulvar_open_stores(url): return 7\n",
        ["returned an int, not Stores"],
    ),
    (
        "halves",
        (
            "from rulvar.core.spi import hookimpl, Stores\n@hookimpl\n"
            "def rulvar_open_stores(url): return Stores(object(), object())\n"
        ),
        ["journal.append", "transcripts.list_refs"],
    ),
    (
        "failing",
        (
            "from rulvar.core.spi import hookimpl\n@hookimpl\n"
            "def rulvar_open_stores(url): raise OSError('no driver')\n"
        ),
        ["failed with OSError: no driver"],
    ),
    (
        "quitting",
        (
            "from rulvar.core.spi import hookimpl\n@hookimpl\n"
            "def rulvar_open_stores(url): raise SystemExit(3)\n"
        ),
        ["failed with SystemExit: 3"],
    ),
]


@pytest.mark.parametrize(("scheme", "source", "words"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_plugin_is_named_and_stops_no_other(
    site: Site, scheme: str, source: str, words: list[str]
) -> None:
    modules = {f"{scheme}_plugin": source} if source else {}
    site.add(f"{scheme}-store", f"[rulvar.stores]\n{scheme} = {scheme}_plugin\n", modules=modules)
    message = site.refusal(f"{scheme}://")
    assert message.startswith("PluginError: ")
    for word in [*words, f"{scheme}-store 1.2"]:
        assert word in message


def test_a_provider_says_itself_what_is_wrong_in_the_url(site: Site) -> None:
    message = site.refusal("good://?ttl=1")
    assert message.startswith("ConfigError: ")
    assert "known: lease_ttl_ms" in message


def test_two_claims_on_one_scheme_name_both(site: Site) -> None:
    site.add("rival", "[rulvar.stores]\ngood = rival_plugin\n", modules={"rival_plugin": GOOD})
    message = site.refusal("good://")
    assert message.startswith("PluginError: ")
    assert "acme-store 1.2 (good_plugin)" in message
    assert "rival 1.2 (rival_plugin)" in message
    problems = site.ask(
        "from rulvar.core.plugins import installed_stores\n"
        "answer = [[s.distribution, s.problem] for s in installed_stores() if s.scheme == 'good']"
    )
    assert problems == [
        ["acme-store", "also claimed by rival 1.2 (rival_plugin): uninstall one"],
        ["rival", "also claimed by acme-store 1.2 (good_plugin): uninstall one"],
    ]


def test_damaged_metadata_hides_nobody_else(site: Site) -> None:
    site.add("nameless", "[rulvar.stores]\nanon = anon_plugin\n", metadata=False)
    site.add("garbled", b"\xff\xfe[rulvar.stores]\n")
    site.add("malformed", "[rulvar.stores]\nodd = not a module!!\n")
    answer = site.ask(
        "import warnings\n"
        "from rulvar.core.plugins import installed_stores\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    found = {s.scheme: [s.distribution, s.problem] for s in installed_stores()}\n"
        "answer = [found['good'], found['odd'],\n"
        "          [str(w.message) for w in caught if 'cannot be read' in str(w.message)]]"
    )
    assert isinstance(answer, list)
    assert answer[0] == ["acme-store", None]
    assert answer[1] == ["malformed", "'not a module!!' is not an object reference"]
    assert any("garbled" in message for message in answer[2])
    message = site.refusal("odd://")
    assert message.startswith("PluginError: ")
    assert "malformed 1.2" in message


def test_an_unknown_scheme_names_what_to_install(site: Site) -> None:
    message = site.refusal("goood:///x")
    assert message.startswith("PluginError: no installed distribution opens goood:// stores")
    assert "did you mean good://?" in message
    answer = site.ask(
        "from rulvar.core import plugins\n"
        "plugins.find_spec = lambda _name: None\n"
        "answer = [plugins._unknown_scheme(s, []) for s in ('sqlite', 'file', 'memory', 'sqlit')]"
    )
    assert isinstance(answer, list)
    for text, install in zip(
        answer,
        [
            "pip install rulvar-store-sqlite",
            "pip install rulvar-store-file",
            "rulvar-core",
            "did you mean sqlite://?",
        ],
        strict=True,
    ):
        assert install in text


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_here_without_its_metadata_is_not_to_be_installed(site: Site, frozen: bool) -> None:
    answer = site.ask(
        "import sys\n"
        "from rulvar.core import plugins\n"
        f"if {frozen}: sys.frozen = True\n"
        "plugins._entry_points = lambda group: []\n"
        "answer = []\n"
        "for here in (True, False):\n"
        "    plugins.find_spec = lambda _name: object() if here else None\n"
        "    try: plugins.open_stores('sqlite:///runs.db')\n"
        "    except plugins.PluginError as error: answer.append(str(error))"
    )
    assert isinstance(answer, list)
    here, absent = answer
    assert "rulvar.stores.sqlite is here, and the metadata of rulvar-store-sqlite" in here
    assert "pip install" not in here
    assert ("--copy-metadata rulvar-store-sqlite" in here) == frozen
    assert ("pip install" in absent) != frozen
    assert ("frozen application was built without rulvar-store-sqlite" in absent) == frozen


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_what_cannot_be_looked_up_is_not_to_be_installed(site: Site) -> None:
    answer = site.ask(
        "import os, resource\n"
        "from rulvar.core import plugins, errors\n"
        "import importlib_metadata, pluggy, rulvar.core.hookspecs\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open(os.devnull, os.O_RDONLY))\n"
        "except OSError: pass\n"
        "try: plugins.open_stores('good://')\n"
        "except errors.StoreError as error: answer = [str(error)]\n"
        "for each in held: os.close(each)\n"
        "plugins.open_stores('good://').close()\n"
        "answer.append('opened')"
    )
    assert isinstance(answer, list)
    assert "Too many open files" in answer[0]
    assert "ulimit -n" in answer[0]
    assert answer[1] == "opened"


def test_an_interrupt_of_a_person_is_not_the_plugin_s(site: Site) -> None:
    site.add(
        "slow",
        "[rulvar.stores]\nslow = slow_plugin\n",
        modules={
            "slow_plugin": (
                "import os, signal, threading\n"
                "os.kill(os.getpid(), signal.SIGINT)\n"
                "threading.Event().wait(60)\n"
            )
        },
    )
    answer = site.ask(
        "import signal\n"
        "from rulvar.core.plugins import open_stores\n"
        "before = signal.getsignal(signal.SIGINT)\n"
        "try: open_stores('slow://')\n"
        "except KeyboardInterrupt: answer = signal.getsignal(signal.SIGINT) is before\n"
    )
    assert answer is True


def test_commands_are_loaded_by_name(site: Site) -> None:
    site.add(
        "more-commands",
        "[rulvar.commands]\ngreet = greet_plugin:main\nbroken = gone_plugin\n",
        modules={"greet_plugin": "def main(): return 'hello'\n"},
    )
    answer = site.ask(
        "from rulvar.core.plugins import load_command, PluginError\n"
        "answer = [load_command('greet')()]\n"
        "for name in ('broken', 'gret'):\n"
        "    try: load_command(name)\n"
        "    except PluginError as error: answer.append([error.name, str(error)])"
    )
    assert isinstance(answer, list)
    assert answer[0] == "hello"
    assert answer[1][0] == "broken"
    assert "more-commands 1.2 (gone_plugin)" in answer[1][1]
    assert "did you mean 'greet'?" in answer[2][1]


# --- what this process sees -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::rulvar.core.memory.EphemeralStoreWarning")
def test_memory_is_built_in_and_fresh_each_time() -> None:
    claim = next(s for s in installed_stores() if s.scheme == "memory")
    assert (claim.distribution, claim.problem) == ("rulvar-core", None)
    with open_stores("memory://") as one, open_stores("memory://") as other:
        assert isinstance(one.journal, MemoryJournalStore)
        assert one.journal is not other.journal
    for url in ("memory:///runs.db", "memory://host", "memory://?lease_ttl_ms=1"):
        with pytest.raises(ConfigError):
            open_stores(url)


def test_an_unknown_command_is_a_typed_error() -> None:
    with pytest.raises(PluginError, match="no installed distribution"):
        load_command("no-such-command")
