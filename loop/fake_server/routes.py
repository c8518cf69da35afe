"""Path to handler. A dictionary instead of the library's router: it costs nothing per request."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from loop.fake_server import controls, generation
from loop.fake_server.state import State

Handler = Callable[[State, web.BaseRequest], Awaitable[web.StreamResponse]]

_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")
ROUTES: dict[str, tuple[tuple[str, ...], Handler]] = {
    "/generate": (("POST", "PUT"), generation.generate),
    "/v1/completions": (_POST, generation.complete),
    "/v1/chat/completions": (_POST, generation.chat),
    "/health": (_GET, controls.health),
    "/health_generate": (_GET, controls.health),
    "/ready": (_GET, controls.health),
    "/server_info": (_GET, controls.server_info),
    "/get_server_info": (_GET, controls.server_info),
    "/model_info": (_GET, controls.model_info),
    "/get_model_info": (_GET, controls.model_info),
    "/v1/models": (_GET, controls.models),
    "/flush_cache": (_BOTH, controls.flush_cache),
    "/abort_request": (_POST, controls.abort_request),
    "/start_profile": (_BOTH, controls.start_profile),
    "/stop_profile": (_BOTH, controls.stop_profile),
    "/metrics": (_GET, controls.metrics),
    "/metrics/": (_GET, controls.metrics),
}


def dispatch(state: State) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """The one handler of the server."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        methods, handler = ROUTES.get(request.path, ((), None))
        if handler is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.method not in methods:
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        return await handler(state, request)

    return handle
