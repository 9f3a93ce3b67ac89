// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/staticpods"
)

// discoverPeriod is how often the agent looks at what the kubelet is configured with. It is also
// the pause after a failure.
const discoverPeriod = 30 * time.Second

// keeper is what parks the static pods of one folder; staticpods.Keeper implements it.
type keeper interface {
	Run(ctx context.Context) error
	Problem() string
	Parked() ([]staticpods.Entry, error)
	Refused() int
}

// staticPods follows the kubelet's configuration, and runs a keeper for the folder that it names.
// It implements shutdown.StaticPods.
type staticPods struct {
	config *configv1alpha1.NodeAgentConfiguration
	// discover returns the kubelet's configuration; kubelet.Discover implements it.
	discover func(ctx context.Context, configPath string) (kubelet.Facts, error)
	// kubeletProblem returns why the agent cannot stop the kubelet, empty if it can; ok is false if
	// that is not known now. nil if it is not asked.
	kubeletProblem func(context.Context) (problem string, ok bool)
	// newKeeper returns a keeper for a folder.
	newKeeper func(dir string, facts kubelet.Facts) (keeper, error)
	// found is called with each folder that is in use.
	found func(dir string)

	mu sync.Mutex
	// failed is why there is no keeper; warnings are sentences about the kubelet's configuration.
	failed   string
	warnings []string
	// left are folders that an earlier keeper had, leftBehind are sentences about what is parked of
	// those that none has now.
	left, leftBehind []string
	// notStopped is the last answer of kubeletProblem, asked whether there was one. runtime is the
	// endpoint of the kubelet's container runtime, empty until it is known.
	notStopped string
	asked      bool
	runtime    string
	keeper     keeper
	// current is what the keeper was made for.
	current keeperKey
}

type keeperKey struct {
	dir, healthz, kubeconfig string
}

// serverOf returns a function that reads the URL of the kubelet's API server. A kubelet without a
// kubeconfig of its own is a part of another program, whose kubeconfig is the agent's.
func serverOf(c *configv1alpha1.NodeAgentConfiguration, facts kubelet.Facts) func() (string, error) {
	return func() (string, error) {
		config, err := restConfig(cmp.Or(facts.Kubeconfig, c.Kubeconfig))
		if err != nil {
			return "", err
		}
		return config.Host, nil
	}
}

// authoritiesOf returns a function that reads the certificates of the authorities that the kubelet
// trusts.
func authoritiesOf(c *configv1alpha1.NodeAgentConfiguration, facts kubelet.Facts) func() ([]byte, error) {
	return func() ([]byte, error) {
		config, err := restConfig(cmp.Or(facts.Kubeconfig, c.Kubeconfig))
		if err != nil {
			return nil, err
		}
		return authoritiesIn(config)
	}
}

// staticPodNames returns the static pods of the node that the API knows.
func (a *agent) staticPodNames() []types.NamespacedName {
	var names []types.NamespacedName
	for _, pod := range a.checkpoint.Pods() {
		if pod.Static && !pod.Finished {
			names = append(names, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	return names
}

// Problem returns why static pods cannot be stopped and restarted now, empty if they can.
func (s *staticPods) Problem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != "":
		return s.failed
	case s.keeper == nil:
		return "the kubelet's folder of static pods is not known yet"
	}
	return cmp.Or(s.unitProblem(), s.keeper.Problem())
}

// unitProblem returns what the kubelet's unit has against stopping static pods, empty if nothing.
// The caller holds mu.
func (s *staticPods) unitProblem() string {
	if s.kubeletProblem != nil && !s.asked {
		return "it is not known yet whether kubeletService is the unit of the kubelet"
	}
	return s.notStopped
}

// limitedKubelet is not healthy while the agent may not stop static pods because of its unit: so
// the keeper parks none, also if a server asks for it.
type limitedKubelet struct {
	staticpods.Kubelet
	static *staticPods
}

// Check implements staticpods.Kubelet.
func (k *limitedKubelet) Check(ctx context.Context) error {
	k.static.mu.Lock()
	problem := k.static.unitProblem()
	k.static.mu.Unlock()
	if problem != "" {
		return errors.New(problem)
	}
	return k.Kubelet.Check(ctx)
}

// KubeletProblem returns why the agent cannot stop the kubelet, empty if it can or if that is not
// known yet.
func (s *staticPods) KubeletProblem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notStopped
}

// RuntimeEndpoint returns the endpoint of the container runtime: that of the kubelet, or until it
// is known the configured one, or the kubelet's default.
func (s *staticPods) RuntimeEndpoint() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.runtime, s.config.RuntimeEndpoint, kubelet.DefaultRuntimeEndpoint)
}

// Folder returns the folder of static pods, empty until it is known.
func (s *staticPods) Folder() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.dir
}

// Warnings returns sentences about the kubelet's configuration, and about what stays parked.
func (s *staticPods) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.leftBehind, s.warnings)
}

// Parked returns the parked manifests.
func (s *staticPods) Parked() ([]staticpods.Entry, error) {
	s.mu.Lock()
	k := s.keeper
	s.mu.Unlock()
	if k == nil {
		return nil, nil
	}
	return k.Parked()
}

// originsOf returns the paths of parked manifests.
func originsOf(entries []staticpods.Entry) (paths []string) {
	for i := range entries {
		paths = append(paths, entries[i].Origin)
	}
	return paths
}

// Refused returns how many static pods are kept although a server asks for their end.
func (s *staticPods) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper == nil {
		return 0
	}
	return s.keeper.Refused()
}

// run keeps a keeper running until the context ends.
func (s *staticPods) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	stop := func() {}
	defer func() { stop() }()
	for {
		if k, err := s.next(ctx); err != nil {
			if s.fail(err) {
				logger.Error(err, "Cannot find out the kubelet's static pods, trying again", "after", discoverPeriod)
			}
		} else if k != nil {
			// Two keepers must not move manifests at the same time.
			stop()
			running.Wait()
			keeping, cancel := context.WithCancel(ctx)
			stop = cancel
			running.Go(func() {
				if err := k.Run(keeping); err != nil {
					s.fail(err)
					logger.Error(err, "Keeper of static pods failed")
				}
			})
		}
		s.noteLeftBehind()
		select {
		case <-ctx.Done():
			return
		case <-time.After(discoverPeriod):
		}
	}
}

// leave notes a folder that a keeper had. The caller holds mu, if s runs.
func (s *staticPods) leave(dir string) {
	if dir != "" && !slices.Contains(s.left, dir) {
		s.left = append(s.left, dir)
	}
}

// noteLeftBehind notes what is parked of the folders that no keeper has: in safe mode, or because
// the kubelet has another folder now.
func (s *staticPods) noteLeftBehind() {
	s.mu.Lock()
	dirs := slices.DeleteFunc(slices.Clone(s.left), func(dir string) bool { return dir == s.current.dir })
	s.mu.Unlock()
	var list []string
	for _, dir := range dirs {
		switch entries, err := staticpods.List(dir); {
		case err != nil:
			list = append(list, fmt.Sprintf("It is not known what is parked of %s: %v.", dir, err))
		case len(entries) > 0:
			list = append(list, fmt.Sprintf("%d manifests of %s are parked, and the agent does not restore them; to do it: "+
				"haulout-node-agent static restore --all --static-pod-path=%s.", len(entries), dir, dir))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftBehind = list
}

// fail stores why there is no keeper, and reports whether that is news.
func (s *staticPods) fail(err error) bool {
	text := "static pods cannot be stopped and restarted: " + err.Error()
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.failed != text
	s.failed = text
	return changed
}

// next looks at the kubelet's configuration, and returns a keeper that has to replace the one that
// runs, or nil. While no kubelet runs, its command line is unknown, and what its file says is not
// taken for a change.
func (s *staticPods) next(ctx context.Context) (keeper, error) {
	facts, err := s.discover(ctx, s.config.KubeletConfig)
	problem, asked := "", false
	if s.kubeletProblem != nil {
		problem, asked = s.kubeletProblem(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked {
		s.notStopped, s.asked = problem, true
	}
	if err == nil && (facts.Running || s.runtime == "" && s.config.RuntimeEndpoint == "") {
		s.runtime = endpointOf(facts.ContainerRuntimeEndpoint)
	}
	if err != nil {
		if s.keeper != nil && s.failed == "" {
			return nil, nil // what is known is good enough
		}
		return nil, err
	}
	dir := cmp.Or(s.config.StaticPodPath, facts.StaticPodPath)
	s.warnings = warnings(s.config, &facts)
	key := keeperKey{dir: dir, healthz: facts.HealthzAddress, kubeconfig: facts.Kubeconfig}
	if s.keeper != nil && s.failed == "" && (key == s.current || !facts.Running) {
		return nil, nil
	}
	k, err := s.newKeeper(dir, facts)
	if err != nil {
		return nil, err
	}
	s.leave(s.current.dir)
	s.keeper, s.current, s.failed = k, key, ""
	s.found(dir)
	return k, nil
}

// warnings returns what in the kubelet's configuration does not fit the agent's.
func warnings(c *configv1alpha1.NodeAgentConfiguration, facts *kubelet.Facts) []string {
	var list []string
	if c.RuntimeEndpoint != "" && facts.ContainerRuntimeEndpoint != "" && socketOf(facts.ContainerRuntimeEndpoint) != socketOf(c.RuntimeEndpoint) {
		list = append(list, fmt.Sprintf("The kubelet's container runtime is at %s, which the agent uses; runtimeEndpoint is %s: remove it, or set it to the same.",
			facts.ContainerRuntimeEndpoint, c.RuntimeEndpoint))
	}
	if facts.StaticPodURL {
		list = append(list, "The kubelet also reads static pods from a URL (staticPodURL), which cannot be stopped.")
	}
	if len(facts.ShutdownFields) > 0 {
		list = append(list, fmt.Sprintf("The kubelet's own graceful shutdown ends all pods when a shutdown begins, while the agent still drains: remove %s "+
			"from the kubelet's configuration.", strings.Join(facts.ShutdownFields, " and ")))
	}
	return list
}

// endpointOf returns an endpoint with its scheme, which the kubelet does not need on Linux.
func endpointOf(endpoint string) string {
	if filepath.IsAbs(endpoint) && !strings.Contains(endpoint, "://") {
		return "unix://" + endpoint
	}
	return endpoint
}

// socketOf returns the file of an endpoint. /var/run is a link to /run on most systems.
func socketOf(endpoint string) string {
	path := strings.TrimPrefix(endpoint, "unix://")
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return path
}
