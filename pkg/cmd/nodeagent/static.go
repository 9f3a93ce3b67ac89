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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/staticpods"
)

// discoverPeriod is the interval at which the agent reads the kubelet's configuration. It is also
// the pause after a failure.
const discoverPeriod = 30 * time.Second

// keeper parks the static pods of one folder; staticpods.Keeper implements it.
type keeper interface {
	Run(ctx context.Context) error
	Problem() string
	Parked() ([]staticpods.Entry, error)
	Refused() int
}

// staticPods follows the kubelet's configuration and runs a keeper for the kubelet's folder of
// static pods.
type staticPods struct {
	config *configv1alpha1.NodeAgentConfiguration
	// discover returns the kubelet's configuration; kubelet.Discover implements it.
	discover func(ctx context.Context, configPath string) (kubelet.Facts, error)
	// kubeletProblem returns the reason why the agent cannot stop the kubelet; empty if it can. ok
	// is false if this is unknown now. The field is nil if the check does not apply.
	kubeletProblem func(context.Context) (problem string, ok bool)
	// newKeeper returns a keeper for a folder.
	newKeeper func(dir string, facts kubelet.Facts) (keeper, error)
	// found is a function that is called with each folder that the kubelet uses.
	found func(dir string)

	mu sync.Mutex
	// failed is the reason why there is no keeper. warnings are sentences about the kubelet's
	// configuration.
	failed   string
	warnings []string
	// left has the folders of earlier keepers. leftBehind has sentences about the parked manifests
	// in folders that have no keeper now.
	left, leftBehind []string
	// notStopped is the last result of kubeletProblem; asked is set after the first result. runtime
	// is the endpoint of the kubelet's container runtime; empty until it is known.
	notStopped string
	asked      bool
	runtime    string
	keeper     keeper
	// current identifies the folder and the facts for which the keeper was created.
	current keeperKey
}

type keeperKey struct {
	dir, healthz, kubeconfig string
}

// ofKubelet returns a function that reads a part of the kubelet's API client. If the kubelet has no
// kubeconfig, it is part of another program, and the function uses the agent's kubeconfig.
func ofKubelet[T any](c *configv1alpha1.NodeAgentConfiguration, facts kubelet.Facts, part func(*rest.Config) (T, error)) func() (T, error) {
	return func() (T, error) {
		config, err := restConfig(cmp.Or(facts.Kubeconfig, c.Kubeconfig))
		if err != nil {
			return *new(T), err
		}
		return part(config)
	}
}

func (a *agent) staticPodNames() []types.NamespacedName {
	var names []types.NamespacedName
	for _, pod := range a.checkpoint.Pods() {
		if pod.Static && !pod.Finished {
			names = append(names, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	return names
}

// Problem returns the reason why the agent cannot stop and restart static pods at present; empty if
// it can.
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

// unitProblem returns the reason why the kubelet's unit prevents the agent from stopping static
// pods; empty if it does not. The caller holds mu.
func (s *staticPods) unitProblem() string {
	if s.kubeletProblem != nil && !s.asked {
		return "it is not known yet whether kubeletService is the unit of the kubelet"
	}
	return s.notStopped
}

// limitedKubelet reports the kubelet as unhealthy while its unit prevents the agent from stopping
// static pods. So the keeper parks no pods, even if a server requests it.
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

// KubeletProblem returns the reason why the agent cannot stop the kubelet; empty if it can or if
// this is not known yet.
func (s *staticPods) KubeletProblem() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notStopped
}

// RuntimeEndpoint returns the endpoint of the kubelet's container runtime. Until this is known, it
// returns the configured endpoint or, without one, the kubelet's default.
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

// Warnings returns sentences about the kubelet's configuration, and about parked manifests that no
// keeper restores.
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

func originsOf(entries []staticpods.Entry) (paths []string) {
	for i := range entries {
		paths = append(paths, entries[i].Origin)
	}
	return paths
}

// Refused returns the number of static pods that are kept although a server requests their end.
func (s *staticPods) Refused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeper == nil {
		return 0
	}
	return s.keeper.Refused()
}

// run runs keepers until the context ends.
func (s *staticPods) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	stop := func() {}
	defer func() { stop() }()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if k, err := s.next(ctx); err != nil {
			if s.fail(err) {
				logger.Error(err, "Cannot find the kubelet's static pods, retrying", "after", discoverPeriod)
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
	}, discoverPeriod)
}

// leave records the folder of a keeper that ends. The caller holds mu, unless s does not run yet.
func (s *staticPods) leave(dir string) {
	if dir != "" && !slices.Contains(s.left, dir) {
		s.left = append(s.left, dir)
	}
}

// noteLeftBehind records parked manifests in folders without a keeper. A folder has no keeper in
// safe mode, or after the kubelet has got another folder.
func (s *staticPods) noteLeftBehind() {
	s.mu.Lock()
	dirs := slices.DeleteFunc(slices.Clone(s.left), func(dir string) bool { return dir == s.current.dir })
	s.mu.Unlock()
	var list []string
	for _, dir := range dirs {
		switch entries, err := staticpods.List(dir); {
		case err != nil:
			list = append(list, fmt.Sprintf("Cannot read the parked manifests of %s: %v.", dir, err))
		case len(entries) > 0:
			list = append(list, fmt.Sprintf("%d manifests of %s are parked, and the agent does not restore them. To restore them: "+
				"haulout-node-agent static restore --all --static-pod-path=%s.", len(entries), dir, dir))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftBehind = list
}

// fail stores the reason why there is no keeper, and reports whether the reason is new.
func (s *staticPods) fail(err error) bool {
	text := "static pods cannot be stopped and restarted: " + err.Error()
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.failed != text
	s.failed = text
	return changed
}

// next reads the kubelet's configuration, and returns a keeper that replaces the running one, or
// nil. While no kubelet runs, its command line is unknown; next then ignores changes in its
// configuration file.
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
			return nil, nil // the known values stay in use
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

// warnings returns sentences about conflicts between the configurations of the kubelet and the
// agent.
func warnings(c *configv1alpha1.NodeAgentConfiguration, facts *kubelet.Facts) []string {
	var list []string
	if c.RuntimeEndpoint != "" && facts.ContainerRuntimeEndpoint != "" && socketOf(facts.ContainerRuntimeEndpoint) != socketOf(c.RuntimeEndpoint) {
		list = append(list, fmt.Sprintf("The agent uses the kubelet's container runtime at %s, but runtimeEndpoint is %s: remove the field, or set it to the same endpoint.",
			facts.ContainerRuntimeEndpoint, c.RuntimeEndpoint))
	}
	if facts.StaticPodURL {
		list = append(list, "The kubelet also reads static pods from a URL (staticPodURL), and the agent cannot stop these.")
	}
	if len(facts.ShutdownFields) > 0 {
		list = append(list, fmt.Sprintf("The kubelet's own graceful shutdown ends all pods when a shutdown begins, while the agent still drains: remove %s "+
			"from the kubelet's configuration.", strings.Join(facts.ShutdownFields, " and ")))
	}
	return list
}

// endpointOf adds the scheme to an endpoint; on Linux, the kubelet accepts endpoints without it.
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
