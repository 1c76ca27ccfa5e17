"""What the pages say is there is there."""

import re
import subprocess

from server import ROOT, binary


def spans(text):
    return re.findall(r"`([^`]+)`", text)


def test_settings_and_keys():
    helps = {command: subprocess.run([binary(), command, "--help"], capture_output=True, text=True, check=True).stdout
             for command in ("serve", "pull")}
    options = set(re.findall(r"--[\w-]+", helps["serve"] + helps["pull"]))
    keys = set(re.findall(r"^(?:# )?(\w+) =", (ROOT / "models/tiny-embed/model.toml").read_text(), re.M)) | {"revision"}
    looked_at = 0
    for page in ("from-text-embeddings-inference.md", "from-triton.md"):
        for line in (ROOT / "docs" / page).read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("| ") or len(cells) < 2 or set(cells[1]) <= set("-"):
                continue
            here = cells[1]
            for option in re.findall(r"--[\w-]+", here):
                assert option in options, (page, option)
                looked_at += 1
            if "model.toml" in here:
                named = here[: here.index("model.toml")]
                for span in spans(named):
                    key = re.match(r"(\w+)(?: =|$)", span)
                    if key and key[1] not in ("startup", "on_demand", "manual"):
                        assert key[1] in keys, (page, key[1])
                        looked_at += 1
    assert looked_at >= 40


def test_reasons_of_errors():
    files = [(ROOT / "src/service" / name).read_text() for name in ("errors.rs", "rejections.rs", "access/refusal.rs")]
    code = "".join(text.split("#[cfg(test)]")[0] for text in files)
    made = set(re.findall(r'"([A-Z][A-Z_]{3,})"', code))
    assert len(made) > 20
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/errors.md").read_text(), re.M))
    assert told == made


def test_reasons_in_the_metrics():
    """The second table of docs/errors.md has every pair of labels that a request can end with."""
    made = set(re.findall(r'^    \("(\w+)", "(\w+)"\),$', (ROOT / "src/telemetry/metrics/outcome.rs").read_text(), re.M))
    assert len(made) > 20
    rows = re.findall(r"^\|.*\| `(answered|rejected|faulted)` \| (.*) \|$", (ROOT / "docs/errors.md").read_text(), re.M)
    assert {(outcome, reason) for outcome, reasons in rows for reason in spans(reasons)} == made


def test_metrics_that_pages_name():
    known = set(re.findall(r"^\| `(plimsoll_\w+)` \|", (ROOT / "docs/metrics.md").read_text(), re.M))
    assert len(known) > 50
    named = {}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"\bplimsoll_\w+", page.read_text()):
            if not name.startswith("plimsoll_pb2") and re.sub(r"_(bucket|sum|count)$", "", name) not in known:
                named.setdefault(page.name, set()).add(name)
    assert not named


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "benches").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_options_of_our_commands():
    """Every `plimsoll COMMAND --option` in a page is one that the command has."""
    known = {}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for line in page.read_text().splitlines():
            for command, rest in re.findall(r"plimsoll ([a-z][a-z-]+)((?: [^`#|]*)?)", line):
                options = re.findall(r"(?<= )--[a-z][\w-]*", rest)
                if not options:
                    continue
                if command not in known:
                    help = subprocess.run([binary(), command, "--help"], capture_output=True, text=True)
                    known[command] = set(re.findall(r"--[\w-]+", help.stdout)) if help.returncode == 0 else set()
                for option in options:
                    assert option in known[command] or option == "--help", (page.name, command, option)
