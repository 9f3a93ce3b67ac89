/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	hostinformers "k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/evacuation"
	"haulout.dev/haulout/pkg/controller/evacuators/daemonset"
	"haulout.dev/haulout/pkg/controller/evacuators/deployment"
	"haulout.dev/haulout/pkg/drain/surge"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
)

// builtInEvacuators are the classes of the built-in evacuators that this server has.
var builtInEvacuators = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet}

// EvacuatorOptions say who takes pods off their nodes before they are evicted.
type EvacuatorOptions struct {
	// BuiltIn are the classes of the built-in evacuators that are on. Admission resolves only
	// these, and the planner leaves pods that only another one could move where they are.
	BuiltIn []string
	// SurgeTimeout is how long a Deployment that was scaled up may make no progress before its pods
	// leave without replacements.
	SurgeTimeout time.Duration
	// VolumeDetachTimeout is how long DaemonSet pods are kept while their node has volumes of pods
	// that have left in use.
	VolumeDetachTimeout time.Duration
	// DaemonSetBudgetPatience is how long the budget of a DaemonSet pod may be closed before the
	// pod is kept on its node.
	DaemonSetBudgetPatience time.Duration
}

func defaultEvacuators() EvacuatorOptions {
	return EvacuatorOptions{
		BuiltIn: slices.Clone(builtInEvacuators), SurgeTimeout: deployment.DefaultSurgeTimeout,
		VolumeDetachTimeout: daemonset.DefaultVolumeDetachTimeout, DaemonSetBudgetPatience: evacuation.DefaultBudgetPatience,
	}
}

func (o *EvacuatorOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.BuiltIn, "evacuators", o.BuiltIn, fmt.Sprintf("Classes of the built-in evacuators that are on, comma separated: %s. "+
		"Empty switches them all off, and pods leave by eviction alone.", allowedEvacuators()))
	fs.DurationVar(&o.SurgeTimeout, "surge-timeout", o.SurgeTimeout, "How long a Deployment that was scaled up so that pods can leave may make no progress before "+
		"these leave without replacements, if their disruption budget lets them.")
	fs.DurationVar(&o.VolumeDetachTimeout, "volume-detach-timeout", o.VolumeDetachTimeout,
		"How long DaemonSet pods stay on a drained node, counted from the first of their Evacuations there, "+
			"while the node has CSI volumes in use that no pod left on it uses. At least 1s.")
	fs.DurationVar(&o.DaemonSetBudgetPatience, "daemonset-budget-patience", o.DaemonSetBudgetPatience,
		"How long the disruption budget of a DaemonSet pod may be closed before the pod is kept on its node "+
			"and no longer blocks the drain. At least 1s.")
}

func (o *EvacuatorOptions) validate() []error {
	var errs []error
	if o.SurgeTimeout < time.Second {
		errs = append(errs, fmt.Errorf("--surge-timeout is %v: must be at least 1s", o.SurgeTimeout))
	}
	if o.VolumeDetachTimeout < time.Second {
		errs = append(errs, fmt.Errorf("--volume-detach-timeout is %v: must be at least 1s", o.VolumeDetachTimeout))
	}
	if o.DaemonSetBudgetPatience < time.Second {
		errs = append(errs, fmt.Errorf("--daemonset-budget-patience is %v: must be at least 1s", o.DaemonSetBudgetPatience))
	}
	for _, class := range o.BuiltIn {
		if !slices.Contains(builtInEvacuators, class) {
			errs = append(errs, fmt.Errorf("--evacuators names %q: allowed are %s", class, allowedEvacuators()))
		}
	}
	return errs
}

// controller is what runs until the context ends.
type controller interface {
	Run(ctx context.Context, workers int)
}

// builtIn makes the controllers of the built-in evacuators that are on. That of Deployments also
// runs while it is off, for what it may have left scaled up before.
func (d controllerDependencies) builtIn(host hostinformers.SharedInformerFactory, own informers.SharedInformerFactory) ([]controller, error) {
	var controllers []controller
	if slices.Contains(d.evacuators.BuiltIn, v1alpha1.EvacuatorClassDaemonSet) {
		c, err := daemonset.New(daemonset.Config{
			Host: d.host, HostInformers: host, Maintenance: d.own, MaintenanceInformers: own, Liveness: d.liveness,
			Recorder: d.recorder, VolumeDetachTimeout: d.evacuators.VolumeDetachTimeout,
		})
		if err != nil {
			return nil, fmt.Errorf("make controller %s: %w", daemonset.Name, err)
		}
		controllers = append(controllers, c)
	}
	c, err := deployment.New(deployment.Config{
		Host: d.host, HostInformers: host, Maintenance: d.own, MaintenanceInformers: own, Recorder: d.recorder, Liveness: d.liveness,
		SurgeTimeout: d.evacuators.SurgeTimeout, EvacuatorStartDeadline: d.options.EvacuatorStartDeadline,
		Off: !slices.Contains(d.evacuators.BuiltIn, v1alpha1.EvacuatorClassDeployment),
	})
	if err != nil {
		return nil, fmt.Errorf("make controller %s: %w", deployment.Name, err)
	}
	return append(controllers, c), nil
}

func allowedEvacuators() string {
	if len(builtInEvacuators) == 0 {
		return "none"
	}
	return strings.Join(builtInEvacuators, ", ")
}

// surgeTimeoutOf returns how long the surge of the Deployment of a pod may make no progress: what
// the Deployment says, else the fallback. ReplicaSets are not cached; their names are those of
// their Deployments with one more part.
func surgeTimeoutOf(deployments appslisters.DeploymentLister, fallback time.Duration) func(*corev1.Pod) time.Duration {
	return func(pod *corev1.Pod) time.Duration {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || owner.Kind != "ReplicaSet" {
			return fallback
		}
		end := strings.LastIndexByte(owner.Name, '-')
		if end < 0 {
			return fallback
		}
		d, err := deployments.Deployments(pod.Namespace).Get(owner.Name[:end])
		if err != nil {
			return fallback
		}
		selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			return fallback
		}
		// A value that means nothing is told by the evacuator.
		timeout, err := surge.TimeoutFor(d.Annotations, fallback)
		if err != nil {
			return fallback
		}
		return timeout
	}
}
