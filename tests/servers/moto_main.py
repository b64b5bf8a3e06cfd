"""moto's server of S3, on a listening socket that is inherited: `python moto_main.py DESCRIPTOR`.

It imports nothing of ours: moto has an environment of its own.
"""

import socket
import sys

if __name__ == "__main__":
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    listener = socket.socket(fileno=int(sys.argv[1]))
    port = listener.getsockname()[1]
    app = create_backend_app("s3")
    make_server("127.0.0.1", port, app, True, request_handler=MotoRequestHandler, fd=listener.fileno()).serve_forever()
