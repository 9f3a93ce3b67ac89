// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/evacuators/daemonset"
	"haulout.dev/haulout/pkg/controller/evacuators/deployment"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/evict"
)

// EvacuatorOptions configure the evacuators that remove pods from their nodes before they are
// evicted. The help of the flags describes the fields.
type EvacuatorOptions struct {
	// BuiltIn are the classes of the enabled built-in evacuators. Admission adds only these to
	// Evacuations. If only a disabled evacuator could remove a pod, the planner keeps the pod.
	BuiltIn                 []string
	SurgeTimeout            time.Duration
	VolumeDetachTimeout     time.Duration
	DaemonSetBudgetPatience time.Duration
}

func defaultEvacuators() EvacuatorOptions {
	return EvacuatorOptions{
		BuiltIn: slices.Clone(protocol.BuiltInClasses), SurgeTimeout: protocol.DefaultSurgeTimeout,
		VolumeDetachTimeout: daemonset.DefaultVolumeDetachTimeout, DaemonSetBudgetPatience: protocol.DefaultBudgetPatience,
	}
}

func (o *EvacuatorOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.BuiltIn, "evacuators", o.BuiltIn, fmt.Sprintf("Classes of the enabled built-in evacuators, separated by commas: %s. "+
		"Static pods leave only with %s, and on nodes with a node agent. "+
		"Empty disables all of them, and pods only leave by eviction.", strings.Join(protocol.BuiltInClasses, ", "), v1alpha1.EvacuatorClassKubelet))
	fs.DurationVar(&o.SurgeTimeout, "surge-timeout", o.SurgeTimeout, "How long a Deployment that was scaled up for replacements may make no progress. "+
		"After that, its pods leave without replacements, if their disruption budgets allow it.")
	fs.DurationVar(&o.VolumeDetachTimeout, "volume-detach-timeout", o.VolumeDetachTimeout,
		"How long DaemonSet pods stay on a drained node while CSI volumes of pods that have left "+
			"are still in use on the node, counted from the first Evacuation of a DaemonSet pod there. At least 1s.")
	fs.DurationVar(&o.DaemonSetBudgetPatience, "daemonset-budget-patience", o.DaemonSetBudgetPatience,
		"How long the disruption budget of a DaemonSet pod may allow no disruption. "+
			"After that, the pod stays on its node and no longer blocks the drain. At least 1s.")
}

func (o *EvacuatorOptions) validate() []error {
	var errs []error
	for _, class := range o.BuiltIn {
		if !slices.Contains(protocol.BuiltInClasses, class) {
			errs = append(errs, fmt.Errorf("--evacuators has %q: allowed are %s", class, strings.Join(protocol.BuiltInClasses, ", ")))
		}
	}
	return errs
}

// controller is a controller that runs until the context ends.
type controller interface {
	Run(ctx context.Context, workers int)
}

// builtIn creates the controllers of the enabled built-in evacuators. The controller of Deployments
// runs even if its evacuator is disabled, to revert earlier surges. asks reports whether an
// Evacuation still asks its pod to leave.
func (d controllerDependencies) builtIn(
	cluster *host.Cluster, selected *selection.Selection, asks func(*v1alpha1.Evacuation) bool,
) (controllers []controller, surges *deployment.Controller, err error) {
	if slices.Contains(d.evacuators.BuiltIn, v1alpha1.EvacuatorClassDaemonSet) {
		c, err := daemonset.New(daemonset.Config{
			Cluster: cluster, Liveness: d.liveness, VolumeDetachTimeout: d.evacuators.VolumeDetachTimeout,
		})
		if err != nil {
			return nil, nil, fmt.Errorf("create controller %s: %w", daemonset.Name, err)
		}
		controllers = append(controllers, c)
	}
	surges, err = deployment.New(deployment.Config{
		Cluster: cluster, Selection: selected, Liveness: d.liveness, Evictions: evict.Client{Host: cluster.Unlimited}, SurgeTimeout: d.evacuators.SurgeTimeout, EvacuatorStartDeadline: d.options.EvacuatorStartDeadline,
		Asks: asks, Off: !slices.Contains(d.evacuators.BuiltIn, v1alpha1.EvacuatorClassDeployment),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("create controller %s: %w", deployment.Name, err)
	}
	return append(controllers, surges), surges, nil
}

// standingIn returns a function that returns the reason why a pod must stay although it waits for
// its eviction or for the evacuator of Deployments.
func standingIn(surges *deployment.Controller) func(*corev1.Pod, string) *eviction.Blocker {
	return func(pod *corev1.Pod, class string) *eviction.Blocker {
		of := surges.Standing
		if class == v1alpha1.EvacuatorClassEviction {
			of = surges.StandingOfEvicted
		}
		if why := of(pod); why != (deployment.Standing{}) {
			return &eviction.Blocker{Reason: why.Reason, Message: why.Message}
		}
		return nil
	}
}
