// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package options reads the variables that configure a development cluster.
package options

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-shellwords"
	"github.com/spf13/pflag"

	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/realnodes"
)

// Mode is how `up` handles haulout-apiserver.
type Mode string

const (
	// ModeRun starts bin/haulout-apiserver and registers it.
	ModeRun Mode = "true"
	// ModePrepare creates everything that the server needs but neither starts nor registers it.
	ModePrepare Mode = "false"
	// ModeExternal registers a server that the user starts, for example in a debugger.
	ModeExternal Mode = "external"
)

// The values of SCHEDULER.
const (
	// SchedulerStock runs kube-scheduler.
	SchedulerStock = "stock"
	// SchedulerHaulout runs haulout-scheduler: kube-scheduler with the plugin HauloutPreemption.
	SchedulerHaulout = "haulout"
)

// MaxNodes is the maximum number of nodes that was tested on a developer's machine.
const MaxNodes = 10000

// KubeVersions are the minor versions of Kubernetes that a cluster can run.
var KubeVersions = []string{"1.34", "1.35", "1.36", layout.Kube}

// Options configure a cluster.
type Options struct {
	// Kube is one of KubeVersions.
	Kube                   string
	Nodes                  int
	RealNodes              int
	PodStages              string
	Haulout                Mode
	HauloutFlags           []string
	FeatureGates           string
	Audit                  bool
	EtcdFlags              []string
	APIServerFlags         []string
	ControllerManagerFlags []string
	Scheduler              string
	SchedulerFlags         []string
	StartTimeout           time.Duration
}

// variable is one option. Its value comes from a flag, an environment variable (which make sets),
// the state of an existing cluster, or the default. The first of these that is set is used.
type variable struct {
	name         string
	defaultValue string
	usage        string
	parse        func(o *Options, value string) error
}

func (v variable) flag() string { return strings.ReplaceAll(strings.ToLower(v.name), "_", "-") }

var variables = []variable{
	{
		"KUBE", layout.Kube,
		"minor version of Kubernetes: " + strings.Join(KubeVersions, ", ") + "; a cluster keeps the one that it was started with",
		func(o *Options, value string) error {
			o.Kube = value
			return oneOf(value, KubeVersions...)
		},
	},
	{
		"NODES", "20", "number of simulated nodes, each with room for 250 pods",
		func(o *Options, value string) (err error) {
			if o.Nodes, err = strconv.Atoi(value); err != nil || o.Nodes < 0 || o.Nodes > MaxNodes {
				return fmt.Errorf("must be a whole number from 0 to %d", MaxNodes)
			}
			return nil
		},
	},
	{
		"REAL_NODES", "0",
		"number of nodes with a kubelet and containers, beside the simulated ones; needs root, runc and nft",
		func(o *Options, value string) (err error) {
			if o.RealNodes, err = strconv.Atoi(value); err != nil || o.RealNodes < 0 || o.RealNodes > realnodes.Max {
				return fmt.Errorf("must be a whole number from 0 to %d", realnodes.Max)
			}
			return nil
		},
	},
	{
		"POD_STAGES", "fast",
		"how kwok simulates pods: fast (immediately) or general (with delays, init containers and finalizers)",
		func(o *Options, value string) error {
			o.PodStages = value
			return oneOf(value, "fast", "general")
		},
	},
	{
		"HAULOUT", string(ModeRun),
		"true: run haulout-apiserver; false: only prepare for it; external: register a server that you start",
		func(o *Options, value string) error {
			o.Haulout = Mode(value)
			return oneOf(value, string(ModeRun), string(ModePrepare), string(ModeExternal))
		},
	},
	{"HAULOUT_FLAGS", "", "more flags for haulout-apiserver", func(o *Options, value string) (err error) {
		o.HauloutFlags, err = splitFlags(value)
		return err
	}},
	{"FEATURE_GATES", "", "feature gates of all control-plane processes, as in Name=true,Other=false",
		func(o *Options, value string) error {
			o.FeatureGates = value
			return checkFeatureGates(value)
		}},
	{
		"AUDIT", "true",
		"true: kube-apiserver logs evictions and deletions of pods to logs/kube-apiserver-audit.log; false: no log",
		func(o *Options, value string) (err error) {
			o.Audit, err = ParseBool("AUDIT", value)
			return err
		},
	},
	{"ETCD_FLAGS", "", "more flags for etcd", func(o *Options, value string) (err error) {
		o.EtcdFlags, err = splitFlags(value)
		return err
	}},
	{"APISERVER_FLAGS", "", "more flags for kube-apiserver", func(o *Options, value string) (err error) {
		o.APIServerFlags, err = splitFlags(value)
		return err
	}},
	{
		"CONTROLLER_MANAGER_FLAGS", "", "more flags for kube-controller-manager",
		func(o *Options, value string) (err error) {
			o.ControllerManagerFlags, err = splitFlags(value)
			return err
		},
	},
	{
		"SCHEDULER", SchedulerStock,
		"stock: run kube-scheduler; haulout: run haulout-scheduler, which keeps budgets when it preempts",
		func(o *Options, value string) error {
			o.Scheduler = value
			return oneOf(value, SchedulerStock, SchedulerHaulout)
		},
	},
	{"SCHEDULER_FLAGS", "", "more flags for kube-scheduler", func(o *Options, value string) (err error) {
		o.SchedulerFlags, err = splitFlags(value)
		return err
	}},
	{
		"START_TIMEOUT", "2m", "timeout of a start",
		func(o *Options, value string) (err error) {
			if o.StartTimeout, err = time.ParseDuration(value); err != nil || o.StartTimeout <= 0 {
				return fmt.Errorf("must be a positive duration such as 90s or 2m")
			}
			return nil
		},
	},
}

// Source collects the values of flags.
type Source struct {
	flags *pflag.FlagSet
}

// AddFlags adds one flag for every variable.
func AddFlags(flags *pflag.FlagSet) *Source {
	for _, v := range variables {
		flags.String(v.flag(), v.defaultValue, fmt.Sprintf("%s [$%s]", v.usage, v.name))
	}
	return &Source{flags: flags}
}

// Values returns the value of every variable. If neither a flag nor the environment sets a
// variable, Values returns the stored value, so that a second `up` without variables keeps the
// values of the first one.
func (s *Source) Values(stored map[string]string) map[string]string {
	values := map[string]string{}
	for _, v := range variables {
		values[v.name] = v.defaultValue
		if value, ok := stored[v.name]; ok {
			values[v.name] = value
		}
		if value, ok := os.LookupEnv(v.name); ok {
			values[v.name] = value
		}
		if flag := s.flags.Lookup(v.flag()); flag != nil && flag.Changed {
			values[v.name] = flag.Value.String()
		}
	}
	return values
}

// Parse checks the values and returns the options. The error names every variable with an invalid
// value.
func Parse(values map[string]string) (Options, error) {
	var o Options
	var wrong []string
	for _, v := range variables {
		value := strings.TrimSpace(values[v.name])
		if value == "" {
			value = v.defaultValue
		}
		if err := v.parse(&o, value); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s=%q: %v", v.name, value, err))
		}
	}
	if o.Scheduler == SchedulerHaulout && o.Kube != layout.Kube {
		wrong = append(wrong, fmt.Sprintf("SCHEDULER=%q: needs KUBE=%s, because haulout-scheduler is built from "+
			"kube-scheduler %s, which must not be newer than kube-apiserver", o.Scheduler, layout.Kube, layout.Kube))
	}
	if len(wrong) > 0 {
		return Options{}, fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return o, nil
}

// ParseBool parses a boolean variable.
func ParseBool(name, value string) (bool, error) {
	if value == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%s=%q: must be one of 1, true, 0, false", name, value)
	}
	return b, nil
}

func oneOf(value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
}

func splitFlags(value string) ([]string, error) {
	flags, err := shellwords.Parse(value)
	if err != nil {
		return nil, fmt.Errorf("must be flags in the syntax of a shell: %w", err)
	}
	for _, flag := range flags {
		// With a flag and its value in two words, a misplaced word would look like a value.
		if !strings.HasPrefix(flag, "-") {
			return nil, fmt.Errorf("must be flags in the form --name=value, %q is not", flag)
		}
	}
	return flags, nil
}

func checkFeatureGates(value string) error {
	if value == "" {
		return nil
	}
	for gate := range strings.SplitSeq(value, ",") {
		name, setting, found := strings.Cut(gate, "=")
		if _, err := strconv.ParseBool(setting); !found || name == "" || err != nil {
			return fmt.Errorf("must be a comma-separated list of Name=true or Name=false, %q is not", gate)
		}
	}
	return nil
}
