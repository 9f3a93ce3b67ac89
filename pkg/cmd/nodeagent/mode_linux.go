// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/state"
)

const (
	// startsFile is the file with the times of the last starts. A reboot removes it.
	startsFile = "/run/haulout-node-agent.starts"
	// directoryFile is the file with the path of the state directory of the last agent that loaded
	// its configuration. A reboot removes it.
	directoryFile = "/run/haulout-node-agent.directory"
	// crashStarts is the number of starts within crashPeriod at which the agent counts as crashing.
	crashStarts = 5
	crashPeriod = time.Minute
	// releasingDir is the state directory of an agent in safe mode without a stored configuration.
	releasingDir = state.RunDirectory + "/safe-mode"
)

// mode describes how the agent runs.
//
// With a configuration but no API client, the agent delays shutdowns and ends the pods on the node.
// The agent is in safe mode if it has no usable configuration or no kubeconfig, or if it crashes.
// In safe mode it takes no lock. For a pending shutdown, safe mode ends the pods with the
// configuration that was stored in this boot, or releases the shutdown immediately if there is
// none.
type mode struct {
	config *configv1alpha1.NodeAgentConfiguration
	client *rest.Config
	node   string
	// files is the data from which the client was created, see clientFiles.
	files []byte
	// why is the reason why the agent cannot do all of its work; empty if it can. safe is set in
	// safe mode.
	why  string
	safe bool
	// crashed is set if the agent is in safe mode because it crashed.
	crashed bool
}

// chooseMode returns the mode in which the agent can run now. lastDir is the state directory of an
// earlier process; empty if unknown.
func chooseMode(ctx context.Context, o *Options, lastDir string, crashed bool) mode {
	c, err := o.Load()
	if err != nil {
		c = config.Default()
		c.StateDirectory = cmp.Or(o.StateDirectory, lastDir, c.StateDirectory)
		return safeMode(ctx, c, "the configuration cannot be loaded: "+err.Error())
	}
	if _, err := os.Stat(c.Kubeconfig); errors.Is(err, fs.ErrNotExist) {
		return safeMode(ctx, c, fmt.Sprintf("there is no file %s (kubeconfig): the machine has not joined a cluster", c.Kubeconfig))
	}
	if crashed {
		m := safeMode(ctx, c, fmt.Sprintf("it was started %d times within a minute", crashStarts))
		m.crashed = true
		return m
	}
	m := mode{config: c}
	if err := m.connect(ctx); err != nil {
		m.why = "no API client can be created: " + err.Error()
	}
	return m
}

// connect creates the client and finds the name of the node. If that fails, the client returns an
// error for each request.
func (m *mode) connect(ctx context.Context) error {
	// Read the files before the client is created, so that a change in the meantime is noticed.
	// Ignore the error: without a readable kubeconfig, no client can be created either.
	m.files, _ = clientFiles(m.config.Kubeconfig)
	var err error
	if m.client, m.node, err = clientOf(ctx, m.config); err != nil {
		m.client, m.node = noAPI(err), lastNode(m.config)
	}
	return err
}

// safeMode returns the mode with the configuration that was stored in this boot, in the state
// directory of c. If none was stored, it returns c without the parts that end pods. The client of
// the mode, if any, writes the conditions of the node.
func safeMode(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration, why string) mode {
	m := mode{why: why, safe: true, config: storedConfiguration(c.StateDirectory)}
	if m.config == nil {
		m.config = releasing(c)
	}
	// The agent does not use the API for this shutdown, so it must not wait for the API.
	m.config.APIGracePeriod.Duration = time.Second
	if m.connect(ctx) != nil {
		return m
	}
	m.client.Wrap(func(next http.RoundTripper) http.RoundTripper { return nodeOnly{next} })
	return m
}

// releasing returns a configuration with which the agent ends no pods and ignores the state of
// earlier processes.
func releasing(c *configv1alpha1.NodeAgentConfiguration) *configv1alpha1.NodeAgentConfiguration {
	c = c.DeepCopy()
	c.LocalEngine, c.StateDirectory = configv1alpha1.LocalEngineNone, releasingDir
	return c
}

// storedConfiguration returns the configuration with which an agent ran in this boot. It returns
// nil if there is none or if the agent stored no list of pods.
func storedConfiguration(dir string) *configv1alpha1.NodeAgentConfiguration {
	kernel, err := state.BootID()
	if err != nil {
		return nil
	}
	stored, err := state.Read(dir, state.RunDirectory)
	if err != nil || stored.Configuration == nil || !state.OfKernel(stored.BootID, kernel) || stored.Configuration.LocalEngine == configv1alpha1.LocalEngineNone {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "pods.json")); err != nil {
		return nil
	}
	return stored.Configuration
}

// lastConfiguration returns the configuration that the agent uses if its own configuration cannot
// be loaded.
func lastConfiguration(ctx context.Context, o *Options) *configv1alpha1.NodeAgentConfiguration {
	c := config.Default()
	c.StateDirectory = o.stateDirectory(ctx)
	return cmp.Or(storedConfiguration(c.StateDirectory), c)
}

// lastNode returns the name of the node for an agent without a client.
func lastNode(c *configv1alpha1.NodeAgentConfiguration) string {
	if c.NodeName != "" {
		return c.NodeName
	}
	// The name is the same in each boot.
	if last, err := state.Read(c.StateDirectory, state.RunDirectory); err == nil && last.Configuration != nil && last.Configuration.NodeName != "" {
		return last.Configuration.NodeName
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "unknown"
	}
	return strings.ToLower(name)
}

// noAPI returns a client that returns an error for each request.
func noAPI(why error) *rest.Config {
	return &rest.Config{Host: "http://localhost", Dial: func(context.Context, string, string) (net.Conn, error) { return nil, why }}
}

// nodeOnly rejects all requests except those about the node and about events.
type nodeOnly struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (n nodeOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/api/v1/nodes/") || strings.HasSuffix(r.URL.Path, "/events") || strings.Contains(r.URL.Path, "/events/") {
		return n.next.RoundTrip(r)
	}
	return nil, errors.New("safe mode: the API is not used")
}

// awaitBetter returns when a new process would have fewer limitations than this one, or when the
// kubeconfig has changed, because the machine has left its cluster or has joined another one. It
// does not return while a shutdown is pending, so that this process completes it.
func (m *mode) awaitBetter(ctx context.Context, o *Options, shuttingDown func() bool) {
	better := func(ctx context.Context) (bool, error) {
		changed := clientChanged(m.config.Kubeconfig, m.files)
		better := changed
		if m.why != "" && !changed {
			next := chooseMode(ctx, o, "", false)
			better = next.why == "" || m.safe && !next.safe
		}
		if !better || shuttingDown() {
			return false, nil
		}
		klog.FromContext(ctx).Info("Restarting the agent: the kubeconfig has changed, or a missing requirement is met", "kubeconfigChanged", changed, "lacked", m.why)
		if m.crashed {
			_ = os.Remove(startsFile) // count only later starts
		}
		return true, nil
	}
	_ = wait.PollUntilContextCancel(ctx, betterPeriod, false, better) // ends with the context, too
}

// lastDirectory returns the directory that noteDirectory wrote; empty if there is none.
func lastDirectory(ctx context.Context, path string) string {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Cannot read the state directory of the last agent")
	}
	return strings.TrimSuffix(string(data), "\n")
}

// noteDirectory writes the path of the state directory to a file. An agent that cannot load its
// configuration can find the state only through this file.
func noteDirectory(ctx context.Context, path, dir string) {
	if err := os.WriteFile(path, []byte(dir+"\n"), 0o600); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot store the path of the state directory")
	}
}

// crashes records that the agent starts, and reports whether it has started too often in the last
// minute. A start that cannot be recorded does not count.
func crashes(ctx context.Context, path string, sinceBoot time.Duration) bool {
	var recent []string
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Cannot read the times of the last starts")
	}
	for _, field := range strings.Fields(string(data)) {
		if at, err := time.ParseDuration(field); err == nil && at <= sinceBoot && sinceBoot-at < crashPeriod {
			recent = append(recent, field)
		}
	}
	recent = append(recent, sinceBoot.String())
	if err := os.WriteFile(path, []byte(strings.Join(recent, "\n")+"\n"), 0o600); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot store the time of this start")
	}
	return len(recent) >= crashStarts
}
