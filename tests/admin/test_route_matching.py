"""Routes are matched without compiling all their paths."""

from described import routes
from starlette.routing import Match, Route

from pybroker.admin.http.permitted import plain_path
from pybroker.admin.operation import DescribedRoute

# With the variables' names as values.
_PATHS = sorted({plain_path(route.path).replace("{domain}", "persistent") for route in routes()})
_MORE = ("/", "", "/metrics//", "/admin/v2/clusters/", "/admin/v2/persistent/a/b/", "/admin/v2/x")


def test_a_route_fits_the_paths_that_starlette_says() -> None:
    for route in routes():
        plain = Route(route.path, route.endpoint, methods=[route.method])
        for path in (*_PATHS, *_MORE):
            scope = {"type": "http", "path": path, "method": "GET", "root_path": ""}
            for method in ("GET", "HEAD", "PUT"):
                scope["method"] = method
                found = _fit(route, scope)
                assert found == _fit(plain, scope), (route, scope)
                if found is Match.NONE:  # for any method
                    break


def _fit(route: Route, scope: dict[str, str]) -> Match | str:
    try:
        return route.matches(scope)[0]
    except Exception as refused:  # an invalid path segment
        return str(refused)


def test_a_route_that_no_request_fits_compiles_nothing() -> None:
    (route,) = (each for each in routes() if each.path == "/admin/v2/clusters")
    another = DescribedRoute(
        "/admin/v2/things/{name:segment}", route.endpoint, "GET", route.operation
    )
    scope = {"type": "http", "path": "/admin/v2/clusters", "method": "GET", "root_path": ""}
    assert another.matches(scope) == (Match.NONE, {})
    assert "path_regex" not in vars(another)
    found, child = another.matches(scope | {"path": "/admin/v2/things/one"})
    assert (found, child["path_params"]) == (Match.FULL, {"name": "one"})
