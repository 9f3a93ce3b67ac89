// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func parse(t *testing.T, args ...string) CompletedOptions {
	t.Helper()
	o := NewOptions()
	all := pflag.NewFlagSet("test", pflag.ContinueOnError)
	sections := o.Flags()
	for _, name := range sections.Order {
		all.AddFlagSet(sections.FlagSets[name])
	}
	must.Do(t, all.Parse(args))
	return o.Complete()
}

func TestDefaultsAreValid(t *testing.T) {
	if err := parse(t).Validate(); err != nil {
		t.Error(err)
	}
}

func TestWrongFlagIsNamed(t *testing.T) {
	cases := map[string]string{
		"--data-dir=":                          "--data-dir",
		"--secure-port=0":                      "--secure-port",
		"--embedded-etcd-quota-bytes=1":        "--embedded-etcd-quota-bytes",
		"--namespace=Not_A_Label":              "--namespace",
		"--service-name=a.b":                   "--service-name",
		"--kube-api-qps=0":                     "--kube-api-qps",
		"--kube-api-burst=-1":                  "--kube-api-burst",
		"--concurrent-syncs=0":                 "--concurrent-syncs",
		"--max-concurrent-evictions=0":         "--max-concurrent-evictions",
		"--denied-after=-1s":                   "--denied-after",
		"--unprotected-patience=0s":            "--unprotected-patience",
		"--completed-evacuation-ttl=0s":        "--completed-evacuation-ttl",
		"--evacuator-start-deadline=0s":        "--evacuator-start-deadline",
		"--evacuators=statefulset.apps.k8s.io": "--evacuators",
		"--long-grace=0s":                      "--long-grace",
		"--stall-timeout=5m":                   "--surge-timeout",
		"--completed-maintenance-ttl=1s":       "--completed-maintenance-ttl",
		"--surge-timeout=0s":                   "--surge-timeout",
		"--volume-detach-timeout=0s":           "--volume-detach-timeout",
		"--daemonset-budget-patience=-1s":      "--daemonset-budget-patience",
		"--adopt-storage=mine":                 "--adopt-storage",
		"--pool-label=two words":               "--pool-label",
		"--intercept-evictions=Always":         "--intercept-evictions",
		"--raw-eviction-ttl=2m":                "--raw-eviction-ttl",
		"--raw-eviction-ttl=25h":               "--raw-eviction-ttl",
		"--leader-elect-lease-duration=10s":    "--leader-elect-lease-duration",
		"--leader-elect-retry-period=0s":       "--leader-elect-retry-period",
		"--enable-admission-plugins=Nonsense":  "Nonsense",
	}
	for arg, want := range cases {
		t.Run(arg, func(t *testing.T) {
			if err := parse(t, arg).Validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error that names %s", err, want)
			}
		})
	}
}

// TestPoolLabel has labels that kubelets may change, which need a second flag.
func TestPoolLabel(t *testing.T) {
	const writable = "--pool-label-writable-by-nodes"
	for name, test := range map[string]struct {
		args []string
		// names are parts of the error; nil if there is none.
		names []string
	}{
		"a label that kubelets may not change":       {args: []string{"--pool-label=node-restriction.kubernetes.io/pool"}},
		"a label that kubelets may change":           {[]string{"--pool-label=example.com/pool"}, []string{"--pool-label", "node-restriction.kubernetes.io/", writable}},
		"a label without a prefix":                   {[]string{"--pool-label=pool"}, []string{"--pool-label", writable}},
		"a label with a similar prefix":              {[]string{"--pool-label=my-node-restriction.kubernetes.io/pool"}, []string{"--pool-label", writable}},
		"a label that kubelets may change, accepted": {args: []string{"--pool-label=example.com/pool", writable}},
		"a key that is not valid, accepted":          {[]string{"--pool-label=a/b/c", writable}, []string{"--pool-label"}},
		"no label":                                   {},
		"no label, but kubelets may change it":       {args: []string{writable}},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, test.args...).Validate()
			if test.names == nil {
				must.Do(t, err)
				return
			}
			must.True(t, err != nil, "got no error")
			for _, part := range test.names {
				is.True(t, strings.Contains(err.Error(), part), "got %q, want %q in it", err, part)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	t.Run("one kubeconfig is used for all purposes", func(t *testing.T) {
		o := parse(t, "--kubeconfig=/a")
		if o.Authentication.RemoteKubeConfigFile != "/a" || o.Authorization.RemoteKubeConfigFile != "/a" {
			t.Errorf("authentication uses %q, authorization %q",
				o.Authentication.RemoteKubeConfigFile, o.Authorization.RemoteKubeConfigFile)
		}
	})
	t.Run("unless another one is named", func(t *testing.T) {
		o := parse(t, "--kubeconfig=/a", "--authentication-kubeconfig=/b")
		if o.Authentication.RemoteKubeConfigFile != "/b" || o.Authorization.RemoteKubeConfigFile != "/a" {
			t.Errorf("authentication uses %q, authorization %q",
				o.Authentication.RemoteKubeConfigFile, o.Authorization.RemoteKubeConfigFile)
		}
	})
	t.Run("etcd is embedded unless servers are named", func(t *testing.T) {
		if !parse(t).Embedded || parse(t, "--etcd-servers=http://127.0.0.1:1").Embedded {
			t.Error("it is the other way round")
		}
	})
	t.Run("the serving certificate is the server's own unless files are named", func(t *testing.T) {
		if !parse(t).SelfManagedCert || parse(t, "--tls-cert-file=/c", "--tls-private-key-file=/k").SelfManagedCert {
			t.Error("it is the other way round")
		}
	})
}

func TestHelpHasSections(t *testing.T) {
	cmd := NewCommand()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"--help"})
	must.Do(t, cmd.Execute())
	for _, section := range []string{
		"Host cluster flags:", "Embedded etcd flags:", "Controllers flags:", "Admission flags:", "--version",
	} {
		if !strings.Contains(out.String(), section) {
			t.Errorf("%q is missing in\n%s", section, out.String())
		}
	}
}
