from pathlib import Path

import pytest

from images import builder
from tests.cluster.target import ExistingTarget, KindTarget, LocalTarget, choose


def test_without_a_choice_a_docker_engine_means_kind():
    assert isinstance(choose({}, docker_answers=True), KindTarget)
    assert isinstance(choose({}, docker_answers=False), LocalTarget)


def test_a_kubeconfig_alone_chooses_nothing():
    assert isinstance(choose({"KUBECONFIG": "/somewhere"}, docker_answers=False), LocalTarget)


def test_a_choice_overrules_the_docker_engine():
    assert isinstance(choose({"CLUSTER": "local"}, docker_answers=True), LocalTarget)


def test_an_existing_cluster_needs_its_kubeconfig_and_where_it_pulls_from():
    with pytest.raises(RuntimeError, match="IMAGE_PREFIX such as registry"):
        choose({"CLUSTER": "existing", "KUBECONFIG": "/k"}, docker_answers=False)
    target = choose({"CLUSTER": "existing", "KUBECONFIG": "/k", "IMAGE_PREFIX": "r.example/"}, docker_answers=False)
    assert isinstance(target, ExistingTarget)
    with pytest.raises(RuntimeError, match="could not pull"):
        target.load("localhost/kvik/operator:1")


def test_kind_without_a_docker_engine_is_refused_before_kind_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(builder, "docker_answers", lambda: False)
    with pytest.raises(RuntimeError, match="needs a Docker engine"):
        KindTarget(tmp_path).up()


def test_a_prefix_that_would_name_another_registry_is_refused_at_once():
    environment = {"CLUSTER": "existing", "KUBECONFIG": "/k", "IMAGE_PREFIX": "localhost"}
    with pytest.raises(RuntimeError, match="IMAGE_PREFIX=localhost must end in /"):
        choose(environment, docker_answers=False)


def test_an_unknown_choice_is_refused_by_name():
    with pytest.raises(RuntimeError, match="CLUSTER=minikube"):
        choose({"CLUSTER": "minikube"}, docker_answers=False)


def test_a_number_of_nodes_is_refused_where_it_is_not_ours_to_choose():
    target = choose({"CLUSTER": "existing", "KUBECONFIG": "/k", "IMAGE_PREFIX": "r.example/"}, docker_answers=False)
    with pytest.raises(RuntimeError, match="only CLUSTER=local"):
        target.up(nodes=2)
