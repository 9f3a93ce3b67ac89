// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/process"
)

func plane(o options.Options) ControlPlane {
	ports := map[string]int{}
	for i, name := range WithPorts {
		ports[name] = 20000 + i
	}
	if o.Kube == "" {
		o.Kube = layout.Kube
	}
	return ControlPlane{Layout: layout.Layout{Dir: "/cluster", BinDir: "/bin"}, Options: o, Ports: ports}
}

func (c ControlPlane) all() []process.Spec {
	return []process.Spec{c.Etcd(), c.APIServer(), c.ControllerManager(), c.Scheduler(), c.Kwok()}
}

func TestProcessesListenOnlyOnLoopback(t *testing.T) {
	for _, spec := range plane(options.Options{}).all() {
		addresses := 0
		for _, arg := range spec.Args {
			flag, value, _ := strings.Cut(arg, "=")
			var ok bool
			switch flag {
			case "--bind-address", "--advertise-address":
				ok = value == "127.0.0.1"
			case "--server-address":
				ok = strings.HasPrefix(value, "127.0.0.1:")
			case "--listen-client-urls", "--listen-peer-urls":
				ok = strings.HasPrefix(value, "unix://")
			default:
				continue
			}
			addresses++
			if !ok {
				t.Errorf("%s has the flag %s, want only loopback addresses and sockets", spec.Name, arg)
			}
		}
		if addresses == 0 {
			t.Errorf("%s has no flag with an address: by default it listens on all", spec.Name)
		}
	}
}

func TestFlagsAreUniqueAndUserFlagsLast(t *testing.T) {
	c := plane(options.Options{
		FeatureGates:           "A=true",
		EtcdFlags:              []string{"--snapshot-count=8"},
		APIServerFlags:         []string{"--v=5"},
		ControllerManagerFlags: []string{"--v=6"},
		SchedulerFlags:         []string{"--v=7"},
	})
	for _, spec := range c.all() {
		seen := map[string]bool{}
		for _, arg := range spec.Args {
			flag, _, _ := strings.Cut(arg, "=")
			if seen[flag] {
				t.Errorf("%s has the flag %s twice", spec.Name, flag)
			}
			seen[flag] = true
		}
	}
	for last, spec := range map[string]process.Spec{
		"--snapshot-count=8": c.Etcd(),
		"--v=5":              c.APIServer(),
		"--v=6":              c.ControllerManager(),
		"--v=7":              c.Scheduler(),
	} {
		if got := spec.Args[len(spec.Args)-1]; got != last {
			t.Errorf("the last flag of %s is %s, want the flag of the user: it must override the others",
				spec.Name, got)
		}
		if spec.Name != layout.Etcd && !slices.Contains(spec.Args, "--feature-gates=A=true") {
			t.Errorf("%s has no feature gates", spec.Name)
		}
	}
}

func TestProgramsOfAVersion(t *testing.T) {
	for version, want := range map[string][]string{
		"1.37": {
			"/bin/etcd", "/bin/kube-apiserver", "/bin/kube-controller-manager", "/bin/kube-scheduler", "/bin/kwok",
		},
		"1.35": {
			"/bin/etcd", "/bin/kube-1.35/kube-apiserver", "/bin/kube-1.35/kube-controller-manager",
			"/bin/kube-1.35/kube-scheduler", "/bin/kwok",
		},
	} {
		var got []string
		for _, spec := range plane(options.Options{Kube: version}).all() {
			got = append(got, spec.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("KUBE=%s: got the programs %q, want %q", version, got, want)
		}
	}
}

func TestAuditLogIsAnOption(t *testing.T) {
	for name, test := range map[string]struct {
		options options.Options
		want    bool
	}{
		"on":  {options.Options{Audit: true}, true},
		"off": {options.Options{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := slices.Contains(
				plane(test.options).APIServer().Args, "--audit-log-path=/cluster/logs/kube-apiserver-audit.log",
			)
			if got != test.want {
				t.Errorf("got an audit log: %t, want %t", got, test.want)
			}
		})
	}
}

// TestAggregatorRoutingIsOff checks that the flag is off, because an APIService with a Service of
// type ExternalName works only without aggregator routing.
func TestAggregatorRoutingIsOff(t *testing.T) {
	for _, arg := range plane(options.Options{}).APIServer().Args {
		if strings.HasPrefix(arg, "--enable-aggregator-routing") {
			t.Errorf("kube-apiserver has the flag %s", arg)
		}
	}
}

func TestKwokConfig(t *testing.T) {
	dir := t.TempDir()
	stages := filepath.Join(dir, "stages")
	for _, folder := range []string{"node/fast", "node/heartbeat-with-lease", "pod/fast", "pod/general"} {
		if err := os.MkdirAll(filepath.Join(stages, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		content := "kind: Stage\nname: " + folder + "\n"
		if err := os.WriteFile(filepath.Join(stages, folder, "stage.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "kwok.yaml")
	if err := writeKwokConfig(path, stages, "general"); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for document := range strings.SplitSeq(string(content), "---\n") {
		var object struct {
			Kind, Name string
			Metadata   struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		found = append(found, object.Kind+" "+object.Name+object.Metadata.Name)
	}
	want := []string{
		"KwokConfiguration ", "Stage node/fast", "Stage node/heartbeat-with-lease", "Stage pod/general", "Stage pod-fail",
	}
	if !slices.Equal(found, want) {
		t.Errorf("got %q, want %q", found, want)
	}
	if err := writeKwokConfig(path, filepath.Join(dir, "missing"), "fast"); err == nil {
		t.Error("got no error without stages: the nodes would never become ready")
	}
}

func TestPodsAreDeletedOnce(t *testing.T) {
	const stage = `kind: Stage
metadata:
  name: pod-delete
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  delay: {durationMilliseconds: 1000}
  next: {delete: true}
`
	once, again, err := deleteOnce([]byte(stage))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		stage    []byte
		operator string
		delay    int
	}{
		"pod-delete":       {once, "DoesNotExist", 1000},
		"pod-delete-again": {again, "Exists", 5000},
	} {
		want := strings.Replace(stage, "name: pod-delete", "name: "+name, 1)
		want = strings.Replace(want, "  delay:", "    - {key: '"+letGo+"', operator: "+test.operator+"}\n  delay:", 1)
		want = strings.Replace(want, "1000", strconv.Itoa(test.delay), 1)
		var got, wanted any
		if err := errors.Join(yaml.Unmarshal(test.stage, &got), yaml.Unmarshal([]byte(want), &wanted)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s: got\n%v, want\n%v", name, got, wanted)
		}
	}

	for name, other := range map[string]string{
		"another stage of pods":  strings.Replace(stage, "delete: true", "statusTemplate: x", 1),
		"a stage of other kinds": strings.Replace(stage, "kind: Pod", "kind: Node", 1),
	} {
		once, again, err := deleteOnce([]byte(other))
		if err != nil || string(once) != other || again != nil {
			t.Errorf("%s: got %q, %q and error %v, want the stage unchanged", name, once, again, err)
		}
	}
}

// TestControlPlaneIgnoresGOGC sets GOGC. Otherwise `cluster up` would restart the control plane
// after a change of GOGC.
func TestControlPlaneIgnoresGOGC(t *testing.T) {
	t.Setenv("GOGC", "30")
	for _, spec := range plane(options.Options{}).all() {
		if !slices.Contains(spec.Env, "GOGC=400") || slices.Contains(spec.Env, "GOGC=30") {
			t.Errorf("%s has the environment %q, want GOGC=400", spec.Name, spec.Env)
		}
	}
}

// TestMemoryLimits checks that kube-apiserver, which has all objects, may use four times as much
// memory as each other program.
func TestMemoryLimits(t *testing.T) {
	limits := map[string]int{}
	for _, spec := range plane(options.Options{}).all() {
		for _, variable := range spec.Env {
			if text, is := strings.CutPrefix(variable, "GOMEMLIMIT="); is {
				limit, err := strconv.Atoi(strings.TrimSuffix(text, "MiB"))
				if err != nil {
					t.Fatal(err)
				}
				limits[spec.Name] = limit
			}
		}
	}
	for name, limit := range limits {
		if most := limits[layout.APIServer]; name != layout.APIServer && (limit == 0 || most/limit != 4) {
			t.Errorf("%s has the memory limit %d MiB, and kube-apiserver %d, want a quarter of that", name, limit, most)
		}
	}
	if len(limits) < 4 {
		t.Errorf("got limits for %v, want one for each program", limits)
	}
}

func TestDialSocketWithLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 150))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	listener, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return // The test has ended.
		}
		defer connection.Close()
		if _, err := io.WriteString(connection, "hello"); err != nil {
			t.Error(err)
		}
	}()
	connection, err := dialSocket(context.Background(), filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if got, err := io.ReadAll(connection); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v, want hello", got, err)
	}
}
