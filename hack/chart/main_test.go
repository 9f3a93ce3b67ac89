// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	commonutil "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// values are values of the chart.
type values = map[string]any

// image returns the values that every installation needs, with additional values.
func image(more values) values {
	all := values{"image": values{"repository": "haulout-apiserver", "tag": "v1"}}
	for key, value := range more {
		all[key] = value
	}
	return all
}

func external(replicas int) values {
	return image(values{"replicas": replicas, "etcd": values{"servers": []any{"$(ETCD_SERVERS)"}}})
}

// render returns the objects of the chart in a namespace, by kind and name.
func render(t *testing.T, c *chart.Chart, namespace string, with values) (map[string]values, error) {
	t.Helper()
	release := common.ReleaseOptions{Name: "haulout", Namespace: namespace, IsInstall: true}
	all, err := commonutil.ToRenderValues(c, with, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	for name, file := range files {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&text, "---\n%s\n", file)
		}
	}
	return objects(t, text.String()), nil
}

// objects parses a stream of objects.
func objects(t *testing.T, stream string) map[string]values {
	t.Helper()
	all := map[string]values{}
	for document := range strings.SplitSeq("\n"+stream, "\n---\n") {
		var object values
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object == nil {
			continue
		}
		metadata := object["metadata"].(values)
		name := fmt.Sprint(object["kind"], " ", metadata["namespace"], "/", metadata["name"])
		if all[name] != nil {
			t.Errorf("%s appears twice", name)
		}
		all[name] = object
	}
	return all
}

// load loads the chart from its folder, which has links, or from its package.
func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(filepath.Join(root, "charts", "haulout"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestChartEqualsManifests renders the chart and the kustomizations with the same settings. They
// may differ in the labels of Helm, and in the place of the etcd servers.
func TestChartEqualsManifests(t *testing.T) {
	for folder, with := range map[string]values{
		"base":                    image(nil),
		"overlays/external-etcd":  external(1),
		"overlays/three-replicas": external(3),
	} {
		t.Run(folder, func(t *testing.T) {
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).
				Run(filesys.MakeFsOnDisk(), filepath.Join(root, "artifacts", folder))
			if err != nil {
				t.Fatal(err)
			}
			text, err := built.AsYaml()
			if err != nil {
				t.Fatal(err)
			}
			want := objects(t, string(text))
			// `helm install --create-namespace` creates the namespace.
			delete(want, "Namespace <nil>/haulout-system")
			got, err := render(t, load(t), "haulout-system", with)
			if err != nil {
				t.Fatal(err)
			}
			for _, all := range []map[string]values{want, got} {
				for _, object := range all {
					normalize(object)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("artifacts/%s (-) and the chart (+) differ:\n%s", folder, diff)
			}
		})
	}
}

// nodeAgent returns values with the node agent.
func nodeAgent(more values) values {
	agent := values{"enabled": true, "image": values{"repository": "haulout-node-agent", "tag": "v1"}}
	for key, value := range more {
		agent[key] = value
	}
	return image(values{"nodeAgent": agent})
}

// TestNodeAgentEqualsManifests renders the node agent of the chart and of artifacts/node-agent.
// They may differ in labels, in the comments of the configuration, and in how a change of the
// configuration restarts the pods.
func TestNodeAgentEqualsManifests(t *testing.T) {
	windows := values{"enabled": true, "image": values{"repository": "haulout-node-agent-windows", "tag": "v1"}}
	for folder, test := range map[string]struct {
		base, with values
		objects    int
	}{
		"node-agent":         {image(nil), nodeAgent(nil), 6},
		"node-agent/windows": {nodeAgent(nil), nodeAgent(values{"windows": windows}), 2},
	} {
		t.Run(folder, func(t *testing.T) {
			want, got := built(t, folder), added(t, test.base, test.with)
			for _, all := range []map[string]values{want, got} {
				for name, object := range maps.Clone(all) {
					normalize(object)
					if object["kind"] == "ConfigMap" {
						// kustomize adds a hash to the name of the ConfigMap.
						object["metadata"].(values)["name"] = "haulout-node-agent"
						delete(all, name)
						all["ConfigMap"] = object
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("artifacts/%s (-) and the chart (+) differ:\n%s", folder, diff)
			}
			if len(got) < test.objects {
				t.Errorf("got %d objects of the node agent, want %d: %v", len(got), test.objects, slices.Collect(maps.Keys(got)))
			}
		})
	}
}

// workers returns values with workers.
func workers(more values) values {
	all := values{"image": values{"repository": "haulout-worker", "tag": "v1"}}
	maps.Copy(all, more)
	return image(values{"workers": all})
}

// TestWorkersEqualManifests renders the workers of the chart and of artifacts. They may differ in
// labels.
func TestWorkersEqualManifests(t *testing.T) {
	for folder, test := range map[string]struct {
		with    values
		objects int
	}{
		"worker-job":    {values{"job": on()}, 7},
		"worker-reboot": {values{"reboot": on()}, 6},
		"worker-reboot-required": {
			values{"reboot": values{"enabled": true, "rebootRequiredFile": "/var/run/reboot-required"}}, 10,
		},
	} {
		t.Run(folder, func(t *testing.T) {
			want, got := built(t, folder), added(t, image(nil), workers(test.with))
			for _, all := range []map[string]values{want, got} {
				for _, object := range all {
					normalize(object)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("artifacts/%s (-) and the chart (+) differ:\n%s", folder, diff)
			}
			if len(got) != test.objects {
				t.Errorf("got %d objects, want %d: %v", len(got), test.objects, slices.Collect(maps.Keys(got)))
			}
		})
	}
}

// TestEvictionInterceptionEqualsManifests renders the webhook of the chart and of
// artifacts/eviction-interception. Without the value, the chart must not have it.
func TestEvictionInterceptionEqualsManifests(t *testing.T) {
	want := built(t, "eviction-interception")
	got := added(t, image(nil), image(values{"evictionInterception": values{"enabled": true}}))
	for _, all := range []map[string]values{want, got} {
		for _, object := range all {
			normalize(object)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("artifacts/eviction-interception (-) and the chart (+) differ:\n%s", diff)
	}
}

// built returns the objects of a kustomization of artifacts.
func built(t *testing.T, folder string) map[string]values {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).
		Run(filesys.MakeFsOnDisk(), filepath.Join(root, "artifacts", folder))
	if err != nil {
		t.Fatal(err)
	}
	text, err := all.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, string(text))
}

// added returns the objects that the chart has only because of the additional values.
func added(t *testing.T, base, with values) map[string]values {
	t.Helper()
	without, err := render(t, load(t), "haulout-system", base)
	if err != nil {
		t.Fatal(err)
	}
	got, err := render(t, load(t), "haulout-system", with)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(got, func(name string, _ values) bool { return without[name] != nil })
	return got
}

func TestValuesChangeTheNodeAgent(t *testing.T) {
	config := func(all map[string]values) string {
		return all["ConfigMap haulout-node-agent/haulout-node-agent"]["data"].(values)["config.yaml"].(string)
	}
	template := func(all map[string]values) values {
		return all["DaemonSet haulout-node-agent/haulout-node-agent"]["spec"].(values)["template"].(values)
	}
	plain, err := render(t, load(t), "platform", nodeAgent(nil))
	if err != nil {
		t.Fatal(err)
	}
	changed, err := render(t, load(t), "platform", nodeAgent(values{
		"config": values{"maxShutdownDelay": "10m", "shutdownGracePeriodByPodPriority": []any{
			values{"priority": 2000000000, "shutdownGracePeriodSeconds": 20},
		}},
		"nodeSelector": values{"pool": "big"}, "tolerations": []any{values{"key": "gpu", "operator": "Exists"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got values
	if err := yaml.UnmarshalStrict([]byte(config(changed)), &got); err != nil {
		t.Fatal(err)
	}
	want := values{
		"apiVersion": "nodeagent.haulout.dev/v1alpha1", "kind": "NodeAgentConfiguration", "maxShutdownDelay": "10m", "apiGracePeriod": "60s",
		"completeAfterReboot": true, "shutdownGracePeriodByPodPriority": []any{
			values{"priority": 2000000000.0, "shutdownGracePeriodSeconds": 20.0},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the configuration (-want +got):\n%s", diff)
	}
	if !strings.Contains(config(changed), "priority: 2000000000\n") {
		t.Errorf("the format of a number changed:\n%s", config(changed))
	}
	if cmp.Equal(template(plain)["metadata"], template(changed)["metadata"]) {
		t.Error("a change of the configuration does not change the pod template, so no pod would be restarted with it")
	}
	pod := template(changed)["spec"].(values)
	if diff := cmp.Diff(values{"kubernetes.io/os": "linux", "pool": "big"}, pod["nodeSelector"]); diff != "" {
		t.Errorf("the nodes (-want +got):\n%s", diff)
	}
	tolerations := pod["tolerations"].([]any)
	if len(tolerations) != 2 || tolerations[1].(values)["key"] != "gpu" {
		t.Errorf("the tolerations are %v", tolerations)
	}
}

// normalize removes the fields of an object that may differ.
func normalize(object values) {
	metadata := object["metadata"].(values)
	if labels, ok := metadata["labels"].(values); ok {
		for _, name := range []string{
			"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart",
		} {
			delete(labels, name)
		}
	}
	switch object["kind"] {
	case "PersistentVolumeClaim":
		delete(metadata, "annotations")
	case "ConfigMap":
		data := object["data"].(values)
		var config values
		if err := yaml.UnmarshalStrict([]byte(data["config.yaml"].(string)), &config); err != nil {
			panic(err)
		}
		data["config.yaml"] = config
	case "DaemonSet":
		template := object["spec"].(values)["template"].(values)
		delete(template["metadata"].(values), "annotations")
		pod := template["spec"].(values)
		initial, _ := pod["initContainers"].([]any)
		for _, container := range append(slices.Clone(initial), pod["containers"].([]any)...) {
			c := container.(values)
			c["image"] = strings.TrimSuffix(c["image"].(string), ":v1")
			delete(c, "imagePullPolicy")
		}
		for _, volume := range pod["volumes"].([]any) {
			if config, ok := volume.(values)["configMap"].(values); ok {
				config["name"] = "haulout-node-agent" // kustomize adds a hash
			}
		}
	case "Deployment":
		pod := object["spec"].(values)["template"].(values)["spec"].(values)
		container := pod["containers"].([]any)[0].(values)
		container["image"] = strings.TrimSuffix(container["image"].(string), ":v1")
		delete(container, "imagePullPolicy")
		container["env"] = slices.DeleteFunc(container["env"].([]any), func(variable any) bool {
			return variable.(values)["name"] == "ETCD_SERVERS"
		})
	}
}

// TestChartFollowsItsNamespace installs the chart in another namespace: no object may contain the
// namespace of artifacts/base.
func TestChartFollowsItsNamespace(t *testing.T) {
	all, err := render(t, load(t), "platform", image(nil))
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "haulout-system") {
		t.Errorf("got an object that contains haulout-system:\n%s", text)
	}
	for _, name := range []string{
		"Deployment platform/haulout-apiserver", "Role platform/haulout-apiserver",
		"RoleBinding kube-system/haulout-apiserver:authentication-reader",
	} {
		if all[name] == nil {
			t.Errorf("got no %s", name)
		}
	}
}

func TestValuesChangeTheDeployment(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0f", 32)
	for name, test := range map[string]struct {
		with values
		want []string
		not  []string
	}{
		"a digest in place of a tag": {
			image(values{"image": values{"repository": "r.example/haulout", "digest": digest}}),
			[]string{"image: r.example/haulout@" + digest}, nil,
		},
		"the default tag is the appVersion": {
			image(values{"image": values{"repository": "r.example/haulout"}}),
			[]string{"image: r.example/haulout:devel"}, nil,
		},
		"a serving certificate": {
			image(values{"servingCertificate": values{
				"secretName":            "haulout-tls",
				"apiServiceAnnotations": values{"cert-manager.io/inject-ca-from": "haulout-system/haulout"},
			}}),
			[]string{
				"- --tls-cert-file=/etc/haulout/serving/tls.crt", "secretName: haulout-tls",
				"cert-manager.io/inject-ca-from: haulout-system/haulout",
			}, nil,
		},
		"several members of etcd": {
			image(values{"etcd": values{"servers": []any{"https://a:2379", "https://b:2379"}, "clientSecret": "own"}}),
			[]string{"- --etcd-servers=https://a:2379,https://b:2379", "secretName: own"},
			[]string{"--data-dir", "PersistentVolumeClaim"},
		},
		"a claim": {
			image(values{"storage": values{"existingClaim": "mine"}}),
			[]string{"claimName: mine"}, []string{"kind: PersistentVolumeClaim"},
		},
		"a StorageClass": {
			image(values{"storage": values{"storageClass": "fast", "size": "20Gi"}}),
			[]string{"storageClassName: fast", "storage: 20Gi"}, nil,
		},
		"the scheduling of the pod": {
			image(values{
				"nodeSelector": values{"pool": "infra"}, "tolerations": []any{values{"key": "infra", "operator": "Exists"}},
				"affinity": values{"nodeAffinity": values{}}, "priorityClassName": "",
				"podLabels": values{"team": "infra"}, "podAnnotations": values{"note": "yes"},
				"imagePullSecrets": []any{values{"name": "registry"}}, "extraArgs": []any{"--v=4"},
			}),
			[]string{
				"pool: infra", "key: infra", "nodeAffinity: {}", "team: infra", "note: \"yes\"", "- --v=4",
				"imagePullSecrets:\n    - name: registry",
			},
			[]string{"priorityClassName"},
		},
		"the network of the node": {
			image(values{"hostNetwork": true, "port": 9443}),
			[]string{"hostNetwork: true", "dnsPolicy: ClusterFirstWithHostNet", "- --secure-port=9443", "containerPort: 9443"},
			[]string{"8443"},
		},
		"labels and annotations of a platform": {
			image(values{
				"commonLabels":   values{"team": "infra", "app.kubernetes.io/part-of": "other"},
				"serviceAccount": values{"annotations": values{"cloud.example/role": "drain"}},
			}),
			[]string{"helm.sh/chart: haulout-0.0.0\nteam: infra", "app.kubernetes.io/part-of: haulout", "cloud.example/role: drain"},
			[]string{"part-of: other"},
		},
		"own constraints in place of those of several replicas": {
			image(values{
				"replicas": 3, "etcd": values{"servers": []any{"https://a:2379"}},
				"topologySpreadConstraints": []any{values{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}},
			}),
			[]string{"topologyKey: rack"}, []string{"topologyKey: kubernetes.io/hostname"},
		},
		"the memory limit of Go follows that of the container": {
			image(values{"resources": values{"limits": values{"memory": "1.5Gi"}}}), []string{"value: 1382MiB"}, []string{"3686MiB"},
		},
		"a decimal memory limit": {
			image(values{"resources": values{"limits": values{"memory": "2000M"}}}), []string{"value: 1716MiB"}, nil,
		},
		"no memory limit": {
			image(values{"resources": values{"limits": values{"memory": nil}}}), nil, []string{"GOMEMLIMIT"},
		},
		"a memory limit of Go": {
			image(values{"goMemoryLimit": "1GiB"}), []string{"value: 1GiB"}, []string{"3686MiB"},
		},
		"a refusal in place of a warning about held nodes": {
			image(values{"nodeHeldWarnings": values{"deny": true}}),
			[]string{"policyName: haulout-node-held\n  validationActions:\n  - Deny"}, []string{"- Warn"},
		},
		"optional objects": {
			image(values{
				"admissionPolicies": values{"enabled": false}, "flowSchemas": values{"enabled": false},
				"networkPolicy": values{"enabled": false}, "nodeHeldWarnings": values{"enabled": false},
			}),
			nil, []string{"ValidatingAdmissionPolicy", "kind: FlowSchema", "NetworkPolicy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := render(t, load(t), "haulout-system", test.with)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for _, object := range all {
				one, err := yaml.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				text.Write(one)
			}
			for _, want := range test.want {
				if !strings.Contains(reindent(text.String()), reindent(want)) {
					t.Errorf("got no %q in\n%s", want, text.String())
				}
			}
			for _, not := range test.not {
				if strings.Contains(text.String(), not) {
					t.Errorf("got %q, want none", not)
				}
			}
		})
	}
}

// reindent removes the indentation of each line.
func reindent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

func TestInvalidValuesAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		with values
		want string
	}{
		"no image":                      {nil, "image.repository is required"},
		"replicas without etcd":         {image(values{"replicas": 3}), "/etcd/servers"},
		"no replica":                    {image(values{"replicas": 0}), "/replicas"},
		"an unknown value":              {image(values{"replicaCount": 3}), "replicaCount"},
		"an unknown nested value":       {image(values{"storage": values{"class": "fast"}}), "class"},
		"an invalid size":               {image(values{"storage": values{"size": "much"}}), "/storage/size"},
		"an invalid digest":             {image(values{"image": values{"digest": "latest"}}), "/image/digest"},
		"an argument without --":        {image(values{"extraArgs": []any{"v=4"}}), "/extraArgs/0"},
		"an invalid memory limit of Go": {image(values{"goMemoryLimit": "4Gi"}), "/goMemoryLimit"},
		"a memory limit without a unit": {
			image(values{"resources": values{"limits": values{"memory": 4294967296}}}), "resources.limits.memory is",
		},
		"a privileged port":              {image(values{"port": 443}), "/port"},
		"a string in place of a boolean": {image(values{"networkPolicy": values{"enabled": "no"}}), "/networkPolicy/enabled"},
		"a string in place of a list":    {image(values{"etcd": values{"servers": "https://a:2379"}}), "/etcd/servers"},
		"a node agent without image":     {nodeAgent(values{"image": values{}}), "nodeAgent.image.repository is required"},
		"a node agent for Windows without image": {
			nodeAgent(values{"windows": values{"enabled": true}}), "nodeAgent.windows.image.repository is required",
		},
		"an invalid pull policy of the node agent": {
			nodeAgent(values{"image": values{"pullPolicy": "Sometimes"}}), "/nodeAgent/image/pullPolicy",
		},
		"workers without image":              {workers(values{"image": values{}, "job": on()}), "workers.image.repository is required"},
		"a file that is not a full path":     {workers(values{"reboot": values{"rebootRequiredFile": "reboot"}}), "/workers/reboot/rebootRequiredFile"},
		"an unknown value of the node agent": {nodeAgent(values{"image": values{}, "kubelet": "x"}), "kubelet"},
		"an invalid pull policy":             {image(values{"image": values{"pullPolicy": "Sometimes"}}), "/image/pullPolicy"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(t, load(t), "haulout-system", test.with)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one that names %s", err, test.want)
			}
		})
	}
}

func TestLint(t *testing.T) {
	for name, with := range map[string]values{"defaults": {}, "three replicas": external(3), "node agent": nodeAgent(nil), "workers": workers(values{"job": on(), "reboot": on()}), "monitoring": monitoring(values{"serviceMonitor": on(), "prometheusRule": on()})} {
		for _, message := range lint.RunAll(filepath.Join(root, "charts", "haulout"), with, "haulout-system").Messages {
			// The chart has no icon.
			if strings.Contains(message.Error(), "icon is recommended") {
				continue
			}
			t.Errorf("%s: %v", name, message)
		}
	}
}

// TestPackage packages the chart and renders the package, which has no links.
func TestPackage(t *testing.T) {
	for version, want := range map[string]string{
		"v0.1.0": "haulout-0.1.0.tgz", "v0.1.0-3-gabcdef1": "haulout-0.1.0-3-gabcdef1.tgz", "abcdef1": "haulout-0.0.0-abcdef1.tgz",
	} {
		path, err := pack(filepath.Join(root, "charts", "haulout"), t.TempDir(), version, "")
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) != want {
			t.Errorf("got %s, want %s", filepath.Base(path), want)
		}
		packed, err := loader.LoadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if packed.Metadata.AppVersion != version {
			t.Errorf("got the appVersion %s, want %s", packed.Metadata.AppVersion, version)
		}
		got, err := render(t, packed, "haulout-system", nodeAgent(nil))
		if err != nil {
			t.Fatal(err)
		}
		source := load(t)
		source.Metadata.Version, source.Metadata.AppVersion = packed.Metadata.Version, version
		unpacked, err := render(t, source, "haulout-system", nodeAgent(nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(unpacked, got); diff != "" {
			t.Errorf("the folder (-) and the package (+) differ:\n%s", diff)
		}
	}
	if _, err := pack(filepath.Join(root, "charts", "haulout"), t.TempDir(), "v one", ""); err == nil {
		t.Error("got a package of version \"v one\", want an error")
	}
}
