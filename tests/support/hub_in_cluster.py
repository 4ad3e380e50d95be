"""The stand-in hub in a pod of its own: it has the demo's model file and wants a token."""

import json
from pathlib import Path

from tests.support import stand_in_hub
from tests.support.kubectl import Kubectl

SECRET = "hub-token"
TOKEN = "hf_of-this-test"
PORT = 8080
"""Of the pod; its Service has 80."""
MODEL_FILE = "/models/smollm2-135m-instruct/model.gguf"
SERVE = f"""
import sys, time
from http.server import ThreadingHTTPServer
from pathlib import Path
sys.path.insert(0, "/hub")
from stand_in_hub import HubState
state = HubState({{"model.gguf": Path({MODEL_FILE!r}).read_bytes()}}, token={TOKEN!r})
ThreadingHTTPServer(("0.0.0.0", 8080), state.handler()).serve_forever()
"""
HUB = """
apiVersion: v1
kind: Pod
metadata: {{name: hub, labels: {{app: hub}}}}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: hub
    image: {image}
    imagePullPolicy: IfNotPresent
    command: [python3, -B, -c, {script}]
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
    securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
    volumeMounts: [{{name: hub, mountPath: /hub}}]
  volumes: [{{name: hub, configMap: {{name: hub}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: hub}}
spec: {{selector: {{app: hub}}, ports: [{{port: 80, targetPort: 8080}}]}}
"""


def start_hub(kubectl: Kubectl, image: str) -> None:
    """Returns once it answers. `image` is the engine's with the demo's model in it."""
    source = Path(stand_in_hub.__file__)
    kubectl.apply(
        kubectl.run("create", "configmap", "hub", f"--from-file={source}", "--dry-run=client", "--output=yaml")
    )
    kubectl.apply(HUB.format(image=image, script=json.dumps(SERVE)))
    kubectl.run("wait", "--for=condition=Ready", "pod/hub", "--timeout=60s")


def hub_url(kubectl: Kubectl) -> str:
    return f"http://hub.{kubectl.namespace}.svc"


def give_token(kubectl: Kubectl) -> None:
    kubectl.run("create", "secret", "generic", SECRET, f"--from-literal=token={TOKEN}")


def remove_hub(kubectl: Kubectl) -> None:
    kubectl.run("delete", "pod/hub", "service/hub", "configmap/hub", f"secret/{SECRET}", "--ignore-not-found")
