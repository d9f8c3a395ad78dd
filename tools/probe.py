"""Probe a port of this machine for a healthy answer: `python -m tools.probe 8081 /readyz`."""

import http.client
import sys

SECONDS = 4.0


def main(port: str, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=SECONDS)  # uses no proxy
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        print(response.status, response.read(1000).decode(errors="replace").strip())
    except OSError as error:
        print(error)
        return 1
    return int(response.status != 200)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
