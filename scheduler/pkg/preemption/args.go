// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Args are the plugin's arguments in a profile of the KubeSchedulerConfiguration.
type Args struct {
	// MinCandidateNodesPercentage is as in DefaultPreemptionArgs: the percentage of nodes on which
	// a preemption is tried, from 0 to 100. The default is 10.
	MinCandidateNodesPercentage *int32 `json:"minCandidateNodesPercentage,omitempty"`
	// MinCandidateNodesAbsolute is as in DefaultPreemptionArgs: the minimum number of nodes on
	// which a preemption is tried. The default is 100.
	MinCandidateNodesAbsolute *int32 `json:"minCandidateNodesAbsolute,omitempty"`
	// AllowDisruptionByPriorityGreaterThanOrEqual is the threshold of pods without a PriorityClass,
	// and of pods whose PriorityClass has no threshold: from -2147483648 to 2000000000. If it is
	// not set, any pod of higher priority may break the budgets of these pods, as with
	// kube-scheduler (KEP-3280).
	AllowDisruptionByPriorityGreaterThanOrEqual *int32 `json:"allowDisruptionByPriorityGreaterThanOrEqual,omitempty"`
}

// decodeArgs returns the arguments with their defaults. It rejects unknown fields, since a
// misspelled threshold would protect nothing.
func decodeArgs(given runtime.Object) (*Args, error) {
	args := &Args{}
	switch given := given.(type) {
	case nil:
	case *runtime.Unknown:
		// JSON is valid YAML as well. Field names must match exactly, including their case.
		raw, err := yaml.YAMLToJSONStrict(given.Raw)
		if err != nil {
			return nil, err
		}
		unknown, err := json.UnmarshalStrict(raw, args)
		if err := errors.Join(append([]error{err}, unknown...)...); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("have type %T: must be a YAML object", given)
	}
	args.MinCandidateNodesPercentage = cmp.Or(args.MinCandidateNodesPercentage, ptr.To[int32](10))
	args.MinCandidateNodesAbsolute = cmp.Or(args.MinCandidateNodesAbsolute, ptr.To[int32](100))
	if t := args.AllowDisruptionByPriorityGreaterThanOrEqual; t != nil && *t > maxThreshold {
		return nil, fmt.Errorf("allowDisruptionByPriorityGreaterThanOrEqual: must be from %d to %d, got %d", noThreshold, maxThreshold, *t)
	}
	return args, nil
}

// upstream returns the arguments of DefaultPreemption, whose constructor validates them.
func (a *Args) upstream() *config.DefaultPreemptionArgs {
	return &config.DefaultPreemptionArgs{
		MinCandidateNodesPercentage: *a.MinCandidateNodesPercentage,
		MinCandidateNodesAbsolute:   *a.MinCandidateNodesAbsolute,
	}
}

// threshold returns the threshold of classes without a threshold, and of pods without a class.
func (a *Args) threshold() int32 {
	return ptr.Deref(a.AllowDisruptionByPriorityGreaterThanOrEqual, noThreshold)
}
