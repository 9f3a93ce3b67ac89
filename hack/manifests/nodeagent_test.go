// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/nodeagent"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const nodeAgentFolder = "../../artifacts/node-agent"

// built returns the objects of a kustomization.
func built(t *testing.T, folder string) []runtime.Object {
	t.Helper()
	built := must.Get(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder))(t)
	text := must.Get(built.AsYaml())(t)
	if _, errs := check(bytes.NewReader(text)); len(errs) > 0 {
		t.Fatal(errs)
	}
	var objects []runtime.Object
	decoder, documents := newDecoder(), yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

func TestConfigurationOfTheNodeAgent(t *testing.T) {
	if _, err := config.Load(nodeAgentFolder + "/config.yaml"); err != nil {
		t.Error(err)
	}
}

// TestRightsOfNodes compares all permissions of nodes. Each kubelet of a cluster gets these
// permissions, so a new permission needs a row in docs/security.md.
func TestRightsOfNodes(t *testing.T) {
	var got []string
	for _, object := range built(t, nodeAgentFolder) {
		switch o := object.(type) {
		case *rbacv1.ClusterRole, *rbacv1.Role:
			for _, rule := range rulesOf(object) {
				namespace := object.(metav1.Object).GetNamespace()
				got = append(got, fmt.Sprintf("%s %s %s %s", namespace, rule.APIGroups, rule.Resources, rule.Verbs))
			}
		case *rbacv1.ClusterRoleBinding:
			wantNodes(t, o.Name, o.Subjects)
		case *rbacv1.RoleBinding:
			wantNodes(t, o.Name, o.Subjects)
		}
	}
	want := []string{
		" [] [namespaces] [get]",
		" [maintenance.haulout.dev] [evacuations/status] [patch]",
		" [maintenance.haulout.dev] [evacuations] [get list watch]",
		" [maintenance.haulout.dev] [nodemaintenances] [get list watch create patch delete]",
	}
	slices.Sort(got)
	is.Slices(t, got, want, "rights")
}

func wantNodes(t *testing.T, name string, subjects []rbacv1.Subject) {
	t.Helper()
	if want := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}}; !slices.Equal(subjects, want) {
		t.Errorf("the subjects of binding %s are %v, want %v", name, subjects, want)
	}
}

// TestInstallerOfTheNodeAgent checks that a drain evicts the installer, that it reads the
// configuration, and that it has no permissions in the cluster.
func TestInstallerOfTheNodeAgent(t *testing.T) {
	objects := built(t, nodeAgentFolder)
	byName := map[string]runtime.Object{}
	for _, object := range objects {
		byName[object.GetObjectKind().GroupVersionKind().Kind+" "+object.(metav1.Object).GetName()] = object
	}
	d, ok := byName["DaemonSet haulout-node-agent"].(*appsv1.DaemonSet)
	must.True(t, ok, "no DaemonSet found")
	pod := &corev1.Pod{Spec: d.Spec.Template.Spec}
	evacuators := sets.New(v1alpha1.EvacuatorClassDaemonSet)
	if left := drainplan.Kept(pod, v1alpha1.PodTypeDaemonSet, &corev1.Node{}, evacuators); left != "" {
		t.Errorf("a drain leaves the pods running: %s", left)
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		configMap, ok := byName["ConfigMap "+volume.ConfigMap.Name].(*corev1.ConfigMap)
		if !ok || configMap.Data["config.yaml"] == "" || configMap.Namespace != d.Namespace {
			t.Errorf("the ConfigMap %s has no config.yaml in namespace %s", volume.ConfigMap.Name, d.Namespace)
		}
	}
	if _, ok := byName["ServiceAccount "+pod.Spec.ServiceAccountName]; !ok {
		t.Errorf("ServiceAccount %s not found", pod.Spec.ServiceAccountName)
	}
	install := pod.Spec.InitContainers[0].Args
	command, flags, err := nodeagent.NewCommand().Find(install)
	must.True(t, err == nil && command.Name() == "install", "%q is not a command of the agent: %v", install, err)
	if err := command.ParseFlags(flags); err != nil {
		t.Errorf("the flags %q: %v", flags, err)
	}
	if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token {
		t.Error("the installer mounts a service account token")
	}
}
