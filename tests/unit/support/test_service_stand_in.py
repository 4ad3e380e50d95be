"""The stand-in for a Service."""

import gc
import socket
import threading

from tests.support.service_stand_in import ServiceStandIn


def test_clients_that_come_while_it_ends_leave_nothing_open() -> None:
    """The API server connects at any moment. A socket that is left open fails whichever test runs when it is found."""
    with socket.create_server(("127.0.0.1", 0)) as backend:
        service = ServiceStandIn([backend.getsockname()[1]])
        service.__enter__()
        connected = threading.Event()
        service._loop.call_soon_threadsafe(connected.wait)
        clients = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(6)]
        ending = threading.Thread(target=service.__exit__)
        ending.start()
        connected.set()
        ending.join()
        for client in clients:
            client.close()
    gc.collect()
