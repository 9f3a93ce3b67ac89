// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// storeConfiguration stores the files of an agent that has run in this boot, with a table of 7
// seconds.
func storeConfiguration(t *testing.T, dir, bootID string, pods bool) {
	t.Helper()
	store := must.Get(state.Open(dir, ""))(t)
	c := config.Default()
	c.NodeName, c.StateDirectory, c.Kubeconfig = "node-1", dir, filepath.Join(dir, "gone.conf")
	c.ShutdownGracePeriodByPodPriority = []configv1alpha1.ShutdownGracePeriodByPodPriority{{ShutdownGracePeriodSeconds: 7}}
	must.Do(t, store.Save(state.State{Phase: state.Armed, BootID: bootID, Configuration: c}))
	if pods {
		must.Do(t, os.WriteFile(filepath.Join(dir, "pods.json"), []byte("{}"), 0o600))
	}
}

func TestChooseMode(t *testing.T) {
	boot := must.Get(state.BootID())(t)
	const (
		broken        = "maxShutdownDelay: 25h\n"
		noAuthorities = `https://127.0.0.1:1", certificate-authority-data: "Z2FyYmFnZQ==`
	)
	for name, test := range map[string]struct {
		config string
		// noFile is set if there is no kubeconfig. badFile is set if it is not a valid kubeconfig.
		noFile, badFile, crashed bool
		// server is the address of the API server; empty for the usual one.
		server string
		// stored is the boot of the stored state. noPods is set if no list of pods was stored.
		stored string
		noPods bool
		// inFile is set if the directory is set in the configuration and not by a flag. noted is
		// set if an earlier process has recorded the directory.
		inFile, noted bool

		safe bool
		why  string
		// local is set if the agent must end pods on the node. storedTable is set if it must use
		// the stored table.
		local, storedTable bool
	}{
		"all files exist":                                  {local: true},
		"an invalid kubeconfig":                            {badFile: true, why: "no API client can be created", local: true},
		"invalid authorities":                              {server: noAuthorities, why: "no API client can be created", local: true},
		"invalid authorities, it crashes":                  {server: noAuthorities, crashed: true, safe: true, why: "started 5 times"},
		"an invalid server":                                {server: "https://a b", why: "no API client can be created", local: true},
		"no kubeconfig":                                    {noFile: true, safe: true, why: "not joined a cluster"},
		"no kubeconfig any more":                           {noFile: true, stored: boot, safe: true, why: "not joined a cluster", local: true, storedTable: true},
		"a broken file":                                    {config: broken, safe: true, why: "maxShutdownDelay"},
		"a broken file, the agent has run":                 {config: broken, stored: boot, safe: true, why: "maxShutdownDelay", local: true, storedTable: true},
		"a broken file, it has run after userspace booted": {config: broken, stored: boot + "-2", safe: true, why: "maxShutdownDelay", local: true, storedTable: true},
		"a broken file, it has run before the boot":        {config: broken, stored: "other", safe: true, why: "maxShutdownDelay"},
		"a broken file, the pods are not known":            {config: broken, stored: boot, noPods: true, safe: true, why: "maxShutdownDelay"},
		"no kubeconfig any more, a directory of its own":   {noFile: true, stored: boot, inFile: true, safe: true, why: "not joined a cluster", local: true, storedTable: true},
		"it crashes, with a directory of its own":          {crashed: true, stored: boot, inFile: true, safe: true, why: "started 5 times", local: true, storedTable: true},
		"a broken file, with a directory of its own":       {config: broken, stored: boot, inFile: true, noted: true, safe: true, why: "maxShutdownDelay", local: true, storedTable: true},
		"it crashes":                                       {crashed: true, stored: boot, safe: true, why: "started 5 times", local: true, storedTable: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if test.stored != "" {
				storeConfiguration(t, dir, test.stored, !test.noPods)
			}
			kubeconfig := kubeconfigFor(t, cmp.Or(test.server, "http://"+unreachable(t)), "")
			switch {
			case test.noFile:
				kubeconfig = filepath.Join(t.TempDir(), "no.conf")
			case test.badFile:
				kubeconfig = filepath.Join(t.TempDir(), "bad.conf")
				must.Do(t, os.WriteFile(kubeconfig, []byte("{"), 0o600))
			}
			o := &Options{Kubeconfig: kubeconfig, StateDirectory: dir}
			file := "nodeName: node-1\n" + test.config
			if test.inFile {
				o.StateDirectory = ""
				file += "stateDirectory: " + dir + "\n"
			}
			o.ConfigFile = configFile(t, file)
			noted := filepath.Join(t.TempDir(), "directory")
			if test.noted {
				noteDirectory(t.Context(), noted, dir)
			}
			m := chooseMode(t.Context(), o, lastDirectory(t.Context(), noted), test.crashed)
			if m.safe != test.safe || (m.why == "") != (test.why == "") || !strings.Contains(m.why, test.why) {
				t.Errorf("safe mode: %t, because %q, want %t, because %q", m.safe, m.why, test.safe, test.why)
			}
			if local := m.config.LocalEngine == configv1alpha1.LocalEngineCRI; local != test.local || m.config.StateDirectory != dir && local {
				t.Errorf("the engine is %s with the state in %s, want that pods are ended: %t", m.config.LocalEngine, m.config.StateDirectory, test.local)
			}
			if stored := m.config.ShutdownGracePeriodByPodPriority[0].ShutdownGracePeriodSeconds == 7; stored != test.storedTable {
				t.Errorf("the table is %v, want the stored one: %t", m.config.ShutdownGracePeriodByPodPriority, test.storedTable)
			}
			// An agent without a client ends and is restarted, while the lock stays held.
			if _, err := kubernetes.NewForConfig(m.client); m.node == "" || err != nil {
				t.Errorf("the node is %q, there is no client: %v", m.node, err)
			}
		})
	}
}

// After `kubeadm reset` and `kubeadm join`, the previous client would still connect to the old
// cluster.
func TestAgentStartsAgainWithAnotherKubeconfig(t *testing.T) {
	for name, test := range map[string]struct {
		// change changes the kubeconfig, or the file of certificate authorities that it names.
		change func(kubeconfig, authorities string) error
		// shuttingDown is set if a shutdown is pending.
		shuttingDown bool
		want         bool
	}{
		"nothing happens": {change: func(string, string) error { return nil }},
		"another cluster": {change: func(kubeconfig, _ string) error {
			return os.Rename(kubeconfigFor(t, "https://127.0.0.1:2", ""), kubeconfig)
		}, want: true},
		"other authorities": {change: func(_, authorities string) error {
			return os.WriteFile(authorities, clientCertificate(t, "other", false), 0o600)
		}, want: true},
		"the kubeconfig is gone":                   {change: func(kubeconfig, _ string) error { return os.Remove(kubeconfig) }, want: true},
		"the kubeconfig is gone during a shutdown": {change: func(kubeconfig, _ string) error { return os.Remove(kubeconfig) }, shuttingDown: true},
		"the kubeconfig is half written":           {change: func(kubeconfig, _ string) error { return os.Truncate(kubeconfig, 70) }},
		"the file of authorities is missing":       {change: func(_, authorities string) error { return os.Remove(authorities) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			authorities := filepath.Join(dir, "ca.crt")
			must.Do(t, os.WriteFile(authorities, clientCertificate(t, "authority", false), 0o600))
			kubeconfig := kubeconfigFor(t, `https://127.0.0.1:1", certificate-authority: "`+authorities, "")
			o := &Options{Kubeconfig: kubeconfig, StateDirectory: dir, ConfigFile: configFile(t, "nodeName: node-1\n")}
			m := chooseMode(t.Context(), o, "", false)
			if m.why != "" {
				t.Fatal(m.why)
			}
			must.Do(t, test.change(kubeconfig, authorities))
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				m.awaitBetter(ctx, o, func() bool { return test.shuttingDown })
				is.Equal(t, ctx.Err() == nil, test.want, "the agent starts again")
			})
		})
	}
}

// In safe mode, the agent only reports to the cluster and sends no other requests.
func TestSafeModeOnlyTells(t *testing.T) {
	kubeconfig, _ := nodeServer(t)
	dir := t.TempDir()
	boot := must.Get(state.BootID())(t)
	storeConfiguration(t, dir, boot, true)
	stored := must.Get(state.Read(dir, ""))(t)
	stored.Configuration.Kubeconfig = kubeconfig
	store := must.Get(state.Open(dir, ""))(t)
	must.Do(t, store.Save(stored))
	m := chooseMode(t.Context(), &Options{ConfigFile: configFile(t, "maxShutdownDelay: 7d\n"), StateDirectory: dir}, "", false)
	client := must.Get(kubernetes.NewForConfig(m.client))(t)
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil {
		t.Errorf("the node cannot be told: %v", err)
	}
	if _, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "safe mode") {
		t.Errorf("pods are listed: %v", err)
	}
}

// An agent in safe mode does not delay a pending shutdown, even if it cannot end the pods.
func TestSafeModeReleases(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.LocalEngine = configv1alpha1.LocalEngineNone
	must.Do(t, os.MkdirAll(c.StateDirectory, 0o700))
	const stored = `{"version":1,"node":"node-1","pods":[{"namespace":"blue","name":"web-1","priority":0}]}`
	must.Do(t, os.WriteFile(filepath.Join(c.StateDirectory, "pods.json"), []byte(stored), 0o600))
	machine := newFakeMachine()
	machine.shutDown(time.Hour)
	startAgent(t, c, &host{machine: machine, kubelet: noKubelet{t}, status: func(string) {}, safeMode: "of a test"})
	select {
	case <-machine.released:
	case <-time.After(30 * time.Second):
		t.Fatal("the shutdown was not released")
	}
}

// In safe mode the agent does not restore parked pods, and the conditions of the node describe how
// to restore them.
func TestSafeModeTellsWhatIsParked(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	dir := parkedFolder(t)
	startAgent(t, c, &host{machine: newFakeMachine(), kubelet: noKubelet{t}, status: func(string) {}, safeMode: "of a test", lastFolder: dir})
	want := "2 manifests of " + dir + " are parked, and the agent does not restore them. To restore them: haulout-node-agent static restore --all --static-pod-path=" + dir
	eventually(t, "the agent reports this", func() bool {
		report, err := askAgent(t.Context(), *c.MetricsBindAddress)
		return err == nil && strings.Contains(strings.Join(report.Shutdown.Problems, "\n"), want)
	})
}

// If the kubelet is not the main process of its unit, the agent must stop neither the kubelet nor
// the containers.
func TestKubeletOfAnotherUnitIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.LocalEngine = configv1alpha1.LocalEngineCRI
	machine := newFakeMachine()
	startAgent(t, c, &host{
		machine: machine, kubelet: noKubelet{t}, status: func(string) {},
		kubeletProblem: func(context.Context) (string, bool) { return "it is another one", true },
	})
	eventually(t, "the agent reports this", func() bool {
		report, err := askAgent(t.Context(), *c.MetricsBindAddress)
		return err == nil && strings.Contains(strings.Join(report.Shutdown.Problems, "\n"), "it is another one")
	})
	machine.shutDown(time.Hour)
	select {
	case <-machine.released:
	case <-time.After(30 * time.Second):
		t.Fatal("the shutdown was not released")
	}
}

func TestCrashes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "starts")
	for i, test := range []struct {
		at   time.Duration
		want bool
	}{
		{at: 10 * time.Second}, {at: 20 * time.Second}, {at: 30 * time.Second}, {at: 40 * time.Second},
		{at: 65 * time.Second, want: true},
		{at: 71 * time.Second, want: true}, // the first start is too old to count
		{at: 4 * time.Minute},
		{at: time.Second}, // after a boot that has not removed the file
	} {
		if got := crashes(t.Context(), path, test.at); got != test.want {
			t.Errorf("start %d at %s: crashes %t, want %t", i+1, test.at, got, test.want)
		}
	}
}

func TestBootOf(t *testing.T) {
	const kernel = "c7ff1bbc-6ee5-4d3f-8e8f-d3a5e3e4b2a1"
	broken := errors.New("no bus")
	for name, test := range map[string]struct {
		userspace, last string
		present         bool
		err             error
		want            string
	}{
		"the first boot of userspace": {want: kernel},
		"the third":                   {userspace: "2", last: kernel + "-1", want: kernel + "-2"},
		"the third boot of userspace, systemd does not respond": {err: broken, last: kernel + "-2", want: kernel + "-2"},
		"an older agent has stored it in this boot":             {userspace: "4711", last: kernel, present: true, want: kernel},
		"an older agent has stored it in the first one":         {userspace: "4711", last: kernel, want: kernel + "-4711"},
		"another kernel has run":                                {userspace: "4711", last: "another", present: true, want: kernel + "-4711"},
		"systemd does not respond at first":                     {err: broken, want: kernel},
		"systemd does not respond after the boot":               {err: broken, last: "another-2", want: kernel},
	} {
		t.Run(name, func(t *testing.T) {
			got := bootOf(kernel, test.userspace, test.last, test.present, test.err)
			is.True(t, got == test.want && len(got) <= 64, "got %q, want %q", got, test.want)
		})
	}
}
