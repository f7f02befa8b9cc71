"""The addresses of the server, and what they answer."""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from promptcal._version import __version__
from promptcal.app import label_state as states
from promptcal.app.actions import FROM_PAGE, ImportLabels, parse_action
from promptcal.app.first_fit import FirstFit, StartRequest
from promptcal.app.hub import Hub
from promptcal.app.label_formats import read_labels_file, to_coco, to_csv, to_label_studio
from promptcal.app.label_state import NameTakenError
from promptcal.app.label_store import DiskFullError
from promptcal.app.packing import packed
from promptcal.app.pictures import SIDES
from promptcal.app.refit_jobs import RefitJobs
from promptcal.app.workspace import Workspace
from promptcal.errors import LabelError, PromptCALError, RunError
from promptcal.runtime.json_model import first_problem
from promptcal.runtime.user_warnings import collected_warnings

MAX_BODY = 32_000_000  # bytes
EXPORTS = {  # the end of the file name, and the type
    "csv": ("labels.csv", "text/csv"),
    "coco": ("coco.json", "application/json"),
    "label-studio": ("label-studio.json", "application/json"),
}
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_PAGES = ("run", "runs", "first-fit")
_NUMBER = re.compile(r"[0-9]{1,18}")  # of an image in an address
_SHARED = (  # of the report
    *("report.css", "dom.js", "picking.js", "scatter.js", "lookups.js", "cards.js", "overview.js", "changes.js"),
    *("labels.js", "curves.js", "confusion.js", "neighbours.js", "attention.js"),
)
# The report of an untrusted run may have any script: it gets a separate origin, without access to the app.
_REPORT_POLICY = "sandbox allow-scripts allow-downloads allow-popups; frame-ancestors 'none'"


def read_assets() -> dict[str, tuple[bytes, str]]:
    """Content and type of every file of the page."""
    found = {}
    for package, names in (("promptcal.app", None), ("promptcal.report", _SHARED)):
        for entry in (resources.files(package) / "assets").iterdir():
            suffix = f".{entry.name.rpartition('.')[2]}"
            if suffix in _TYPES and (names is None or entry.name in names):
                found[entry.name] = entry.read_bytes(), _TYPES[suffix]
    return found


def render_pages() -> dict[str, str]:
    """The HTML of every page; what it shows is loaded by its script."""
    templates = Environment(loader=PackageLoader("promptcal.app", "assets"), autoescape=True, undefined=StrictUndefined)
    return {name: templates.get_template(f"{name}.html.j2").render() for name in _PAGES}


class Routes:
    """The endpoints of a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._assets = read_assets()
        self._pages = render_pages()
        self._decoding = asyncio.Semaphore(max(2, os.cpu_count() or 2))  # threads are left for the user's actions

    def app(self) -> Starlette:
        run, api = "/r/{key}", "/r/{key}/api"
        routes = [
            Route("/", self.home),
            Route("/api/runs", self.runs),
            Route("/api/state", self.fit_status),
            Route("/api/events", self.fit_events),
            Route("/api/fit/{what}", self.change_fit, methods=["POST"]),
            Route("/assets/{name}", self.asset),
            Route(f"{run}/", self.page),
            Route(f"{run}/report", self.report),
            Route(f"{run}/image/{{image}}/{{side}}", self.picture),
            Route(f"{api}/run", self.run_data),
            Route(f"{api}/state", self.snapshot),
            Route(f"{api}/events", self.events),
            Route(f"{api}/history", self.history),
            Route(f"{api}/action", self.action, methods=["POST"]),
            Route(f"{api}/undo", self.undo, methods=["POST"]),
            Route(f"{api}/redo", self.redo, methods=["POST"]),
            Route(f"{api}/reload", self.reload, methods=["POST"]),
            Route(f"{api}/split-preview", self.split_preview, methods=["POST"]),
            Route(f"{api}/map", self.map),
            Route(f"{api}/pages", self.report_pages),
            Route(f"{api}/attention", self.attention),
            Route(f"{api}/import", self.import_labels, methods=["POST"]),
            Route(f"{api}/refit", self.refit),
            Route(f"{api}/refit/{{what}}", self.change_refit, methods=["POST"]),
            Route(f"{run}/export/{{form}}", self.export),
        ]
        handlers: Any = {PromptCALError: _refused, OSError: _failed}
        return Starlette(routes=routes, exception_handlers=handlers)

    async def home(self, request: Request) -> Response:
        if self._hub.first_fit is not None:
            return HTMLResponse(self._pages["first-fit"])
        keys = await run_in_threadpool(self._hub.keys)
        if not self._hub.is_folder and len(keys) == 1:
            return RedirectResponse(request.url_for("page", key=keys[0]).path, 303)
        return HTMLResponse(self._pages["runs"])

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._pages["run"])

    def _first_fit(self) -> FirstFit:
        if self._hub.first_fit is None:
            raise RunError("this server shows runs; start it with a folder of images to fit them")
        return self._hub.first_fit

    async def fit_status(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._first_fit().record))

    async def fit_events(self, request: Request) -> Response:
        first_fit = self._first_fit()
        stream = first_fit.events.stream(json.dumps(first_fit.record()), lambda: ": still here\n\n")
        return StreamingResponse(stream, media_type="text/event-stream")

    async def change_fit(self, request: Request) -> Response:
        first_fit, what, body = self._first_fit(), request.path_params["what"], await _body(request)
        does: dict[str, Callable[[], None]] = {
            "start": lambda: first_fit.start(_parse(StartRequest, body)),
            "resume": first_fit.resume,
            "cancel": first_fit.cancel,
            "labels": lambda: first_fit.use_labels(body),
        }
        if what not in does:
            return Response("not found", 404)
        await run_in_threadpool(does[what])
        return _json(await run_in_threadpool(first_fit.record))

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._assets:
            return Response("not found", 404)
        content, kind = self._assets[name]
        return Response(content, media_type=kind)

    async def runs(self, request: Request) -> Response:
        listings = await run_in_threadpool(self._hub.listings)
        return JSONResponse({"folder": str(self._hub.path), "runs": [vars(listing) for listing in listings]})

    async def _workspace(self, request: Request) -> Workspace:
        return await run_in_threadpool(self._hub.workspace, request.path_params["key"])

    async def run_data(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        return await run_in_threadpool(lambda: _json(run_record(workspace, self._hub)))

    async def snapshot(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        return await run_in_threadpool(lambda: _json(workspace.snapshot()))

    async def history(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        actions = await run_in_threadpool(workspace.store.actions)
        return JSONResponse({"actions": [vars(action) for action in actions[-500:]]})

    async def events(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        is_changed = workspace.has_changed_on_disk
        hello = {"version": workspace.version, "changed": is_changed(), "opened": workspace.opened}

        def beat() -> str:
            return "event: changed\ndata: {}\n\n" if is_changed() else ": still here\n\n"

        stream = workspace.events.stream(json.dumps(hello), beat)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def action(self, request: Request) -> Response:
        workspace, body = await self._workspace(request), await _body(request)
        return await run_in_threadpool(lambda: _json(workspace.act(parse_action(body, FROM_PAGE))))

    async def undo(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        return _json(await run_in_threadpool(workspace.undo) or {"version": workspace.version})

    async def redo(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        return _json(await run_in_threadpool(workspace.redo) or {"version": workspace.version})

    async def reload(self, request: Request) -> Response:
        await run_in_threadpool(self._hub.reopen, request.path_params["key"])
        return JSONResponse({})

    async def split_preview(self, request: Request) -> Response:
        workspace, body = await self._workspace(request), await _body(request)

        def preview() -> Response:
            asked = _parse(SplitRequest, body)
            state = workspace.state
            states.checked_images(state, asked.images)
            images = np.asarray(asked.images, dtype=np.int64)
            call, run = workspace.computer.call, str(workspace.embedded_run)
            parts = call("computations.split_parts", run, len(state), images, asked.n)
            return _json({"parts": packed(parts, "u1")})

        return await run_in_threadpool(preview)

    async def map(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        images, coordinates = await run_in_threadpool(workspace.map)
        return _json({"images": packed(images, "<u4"), "coordinates": packed(coordinates, "<f4")})

    async def report_pages(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        return Response(await run_in_threadpool(workspace.report_pages), media_type="application/json")

    async def attention(self, request: Request) -> Response:
        sheet = (await self._workspace(request)).attention_sheet
        return Response("no picture", 404) if sheet is None else Response(sheet, media_type="image/webp")

    async def import_labels(self, request: Request) -> Response:
        workspace, body = await self._workspace(request), await _body(request)
        name = request.query_params.get("name", "a file")[:200]

        def read() -> Response:
            images, positions = workspace.run.given_images()
            with collected_warnings() as warnings:
                labels = read_labels_file(body, images, positions, name)
            change = workspace.act(ImportLabels(source=name, labels=labels))
            return _json({**change, "n": len(labels), "warnings": warnings})

        return await run_in_threadpool(read)

    async def export(self, request: Request) -> Response:
        workspace, form = await self._workspace(request), request.path_params["form"]
        if form not in EXPORTS:
            return Response("not found", 404)
        suffix, kind = EXPORTS[form]
        text = await run_in_threadpool(exported, workspace, form)
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", workspace.path.absolute().name).lstrip("-.") or "run"
        headers = {"Content-Disposition": f'attachment; filename="{name}-{suffix}"'}
        return Response(text, media_type=kind, headers=headers)

    async def refit(self, request: Request) -> Response:
        jobs = await run_in_threadpool(self._hub.jobs, request.path_params["key"])
        return await run_in_threadpool(lambda: _json({**jobs.record(), **_command(jobs)}))

    async def change_refit(self, request: Request) -> Response:
        jobs = await run_in_threadpool(self._hub.jobs, request.path_params["key"])
        what, body = request.path_params["what"], await _body(request)
        does: dict[str, Callable[[], Any]] = {
            "quick": lambda: jobs.start("quick"),
            "fit": lambda: jobs.start("fit"),
            "cancel": jobs.cancel,
            "accept": jobs.accept,
            "discard": jobs.discard,
            "load": lambda: jobs.load(_parse(LoadRequest, body).attempt),
        }
        if what not in does:
            return Response("not found", 404)
        return _json(await run_in_threadpool(does[what]) or {})

    async def picture(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        given = request.path_params["image"], request.path_params["side"]
        if not all(map(_NUMBER.fullmatch, given)):
            return Response("not found", 404)
        image, side = map(int, given)
        if side not in SIDES or image >= len(workspace.state):
            return Response("not found", 404)
        async with self._decoding:
            if await request.is_disconnected():  # it was scrolled away while it waited
                return Response(status_code=499)
            found = await run_in_threadpool(workspace.pictures.get, image, side)
        if found is None:
            return Response("no picture", 404)
        headers = {"Cache-Control": "private, max-age=3600", "X-Original": "yes" if found.is_original else "no"}
        return Response(found.data, media_type=found.media_type, headers=headers)

    async def report(self, request: Request) -> Response:
        workspace = await self._workspace(request)
        file = workspace.run.directory.report_file
        if not file.is_file() or file.is_symlink():
            raise RunError(f"the run has no report; write it with `promptcal report {workspace.path}`")
        headers = {"Content-Security-Policy": _REPORT_POLICY}
        return HTMLResponse(await run_in_threadpool(file.read_bytes), headers=headers)


class SplitRequest(BaseModel):
    images: list[int]
    n: int


class LoadRequest(BaseModel):
    attempt: int


def _parse(model: type[Any], body: bytes) -> Any:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise LabelError(f"the request is not valid ({first_problem(error)}); load the page again") from error


def _command(jobs: RefitJobs) -> dict[str, Any]:
    """The command that a new fit would run, or why there is none."""
    try:
        return {"command": shlex.join(["promptcal", *jobs.command()]), "commandProblem": ""}
    except PromptCALError as error:
        return {"command": "", "commandProblem": str(error)}


def exported(workspace: Workspace, form: str) -> str:
    """The labels as they are now, in one of the formats of `EXPORTS`."""
    paths, state = workspace.assignments.paths, workspace.state
    if form == "csv":
        return to_csv(paths, state.label_names())
    if form == "coco":
        return to_coco(paths, state.label_names(), workspace.run.info.folder)
    return to_label_studio(paths, state, workspace.path.absolute().name)


def run_record(workspace: Workspace, hub: Hub) -> dict[str, Any]:
    """Everything that the page shows of a run."""
    run, first_fit = workspace.run, hub.first_fit
    return {
        "title": workspace.path.absolute().name,
        "opened": workspace.opened,
        "promptcal": __version__,
        "paths": workspace.assignments.paths,
        "state": workspace.snapshot(),
        "notices": workspace.notices(),
        "pages": workspace.page_names(),
        "hasReport": run.directory.report_file.is_file(),
        "home": "Runs" if hub.is_folder else "Fit" if first_fit is not None else "",
        "fit": None if first_fit is None else first_fit.status(),
    }


def _json(content: Any) -> Response:
    return Response(json.dumps(content, ensure_ascii=True, separators=(",", ":")), media_type="application/json")


async def _body(request: Request) -> bytes:
    """The body of a request, if it is not too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise LabelError(f"the request has over {MAX_BODY // 10**6} MB; send less at once")
        parts.append(part)
    return b"".join(parts)


async def _refused(request: Request, error: Exception) -> Response:
    """What is wrong, in one sentence."""
    status = 507 if isinstance(error, DiskFullError) else 409 if isinstance(error, NameTakenError) else 400
    category = {"category": error.category} if isinstance(error, NameTakenError) else {}
    return JSONResponse({"error": str(error), **category}, status)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"{error}; free some space, or check the folder"}, 507)
