// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func values(changes map[string]string) map[string]string {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	result := AddFlags(flags).Values(nil)
	for name, value := range changes {
		result[name] = value
	}
	return result
}

func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, v := range variables {
		// Call Setenv first, so that the cleanup of the test restores the former value.
		t.Setenv(v.name, "")
		unsetenv(t, v.name)
	}
}

func TestParseDefaults(t *testing.T) {
	clearEnvironment(t)
	got, err := Parse(values(nil))
	if err != nil {
		t.Fatal(err)
	}
	want := Options{
		Kube:                   "1.37",
		Nodes:                  20,
		PodStages:              "fast",
		Haulout:                ModeRun,
		Audit:                  true,
		StartTimeout:           2 * time.Minute,
		HauloutFlags:           []string{},
		EtcdFlags:              []string{},
		APIServerFlags:         []string{},
		ControllerManagerFlags: []string{},
		Scheduler:              SchedulerStock,
		SchedulerFlags:         []string{},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParse(t *testing.T) {
	clearEnvironment(t)
	tests := map[string]struct {
		values map[string]string
		check  func(o Options) bool
		// wrong has the variables that the error must name.
		wrong []string
	}{
		"no nodes": {
			values: map[string]string{"NODES": "0"},
			check:  func(o Options) bool { return o.Nodes == 0 },
		},
		"an empty value is the default": {
			values: map[string]string{"NODES": ""},
			check:  func(o Options) bool { return o.Nodes == 20 },
		},
		"a number with spaces around it": {
			values: map[string]string{"NODES": " 7 "},
			check:  func(o Options) bool { return o.Nodes == 7 },
		},
		"a negative number of nodes": {values: map[string]string{"NODES": "-1"}, wrong: []string{"NODES"}},
		"too many nodes":             {values: map[string]string{"NODES": "10001"}, wrong: []string{"NODES"}},
		"a word instead of a number": {values: map[string]string{"NODES": "many"}, wrong: []string{"NODES"}},
		"an external server": {
			values: map[string]string{"HAULOUT": "external"},
			check:  func(o Options) bool { return o.Haulout == ModeExternal },
		},
		"our scheduler": {
			values: map[string]string{"SCHEDULER": "haulout"},
			check:  func(o Options) bool { return o.Scheduler == SchedulerHaulout },
		},
		"an older version of Kubernetes": {
			values: map[string]string{"KUBE": "1.34"},
			check:  func(o Options) bool { return o.Kube == "1.34" },
		},
		"a patch release of Kubernetes":     {values: map[string]string{"KUBE": "1.35.6"}, wrong: []string{"KUBE"}},
		"our scheduler on an older version": {values: map[string]string{"SCHEDULER": "haulout", "KUBE": "1.36"}, wrong: []string{"SCHEDULER"}},
		"an unknown scheduler":              {values: map[string]string{"SCHEDULER": "fast"}, wrong: []string{"SCHEDULER"}},
		"an unknown mode":                   {values: map[string]string{"HAULOUT": "no"}, wrong: []string{"HAULOUT"}},
		"an unknown pod stage": {
			values: map[string]string{"POD_STAGES": "slow"},
			wrong:  []string{"POD_STAGES"},
		},
		"feature gates": {
			values: map[string]string{"FEATURE_GATES": "A=true,B=false"},
			check:  func(o Options) bool { return o.FeatureGates == "A=true,B=false" },
		},
		"a feature gate without value": {
			values: map[string]string{"FEATURE_GATES": "A=true,B"},
			wrong:  []string{"FEATURE_GATES"},
		},
		"a feature gate without name": {
			values: map[string]string{"FEATURE_GATES": "=true"},
			wrong:  []string{"FEATURE_GATES"},
		},
		"an argument that is not a flag": {
			values: map[string]string{"APISERVER_FLAGS": "--v=2 3"},
			wrong:  []string{"APISERVER_FLAGS"},
		},
		"a quote that is not closed": {
			values: map[string]string{"HAULOUT_FLAGS": "--a='b"},
			wrong:  []string{"HAULOUT_FLAGS"},
		},
		"a timeout without unit": {
			values: map[string]string{"START_TIMEOUT": "10"},
			wrong:  []string{"START_TIMEOUT"},
		},
		"the error names all wrong variables": {
			values: map[string]string{"NODES": "x", "HAULOUT": "x"},
			wrong:  []string{"NODES", "HAULOUT"},
		},
		"no audit log": {
			values: map[string]string{"AUDIT": "false"},
			check:  func(o Options) bool { return !o.Audit },
		},
		"an invalid boolean": {
			values: map[string]string{"AUDIT": "perhaps"},
			wrong:  []string{"AUDIT"},
		},
		"flags of etcd": {
			values: map[string]string{"ETCD_FLAGS": "--a=1"},
			check:  func(o Options) bool { return reflect.DeepEqual(o.EtcdFlags, []string{"--a=1"}) },
		},
		"flags of the controller manager": {
			values: map[string]string{"CONTROLLER_MANAGER_FLAGS": "--a=1"},
			check:  func(o Options) bool { return reflect.DeepEqual(o.ControllerManagerFlags, []string{"--a=1"}) },
		},
		"a quoted value with a space is one flag": {
			values: map[string]string{"APISERVER_FLAGS": `--a="b c" --d`},
			check:  func(o Options) bool { return reflect.DeepEqual(o.APIServerFlags, []string{"--a=b c", "--d"}) },
		},
		"flags of the scheduler and of haulout-apiserver": {
			values: map[string]string{"SCHEDULER_FLAGS": "--v=4", "HAULOUT_FLAGS": "--v=5"},
			check:  func(o Options) bool { return o.SchedulerFlags[0] == "--v=4" && o.HauloutFlags[0] == "--v=5" },
		},
		"a command in a flag is not executed": {
			values: map[string]string{"HAULOUT_FLAGS": "--a=`id`"},
			check:  func(o Options) bool { return reflect.DeepEqual(o.HauloutFlags, []string{"--a=`id`"}) },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(values(test.values))
			if len(test.wrong) == 0 {
				if err != nil {
					t.Fatalf("got error %v, want none", err)
				}
				if !test.check(got) {
					t.Errorf("got wrong options %+v", got)
				}
				return
			}
			if err == nil {
				t.Fatalf("got %+v, want an error", got)
			}
			for _, variable := range test.wrong {
				if !strings.Contains(err.Error(), variable+"=") {
					t.Errorf("the error does not name %s: %v", variable, err)
				}
			}
		})
	}
}

func TestValuesPrecedence(t *testing.T) {
	clearEnvironment(t)
	stored := map[string]string{"NODES": "1", "HAULOUT": "false", "POD_STAGES": "general", "FEATURE_GATES": "A=true"}
	t.Setenv("HAULOUT", "external")
	t.Setenv("POD_STAGES", "fast")
	t.Setenv("FEATURE_GATES", "")
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	source := AddFlags(flags)
	if err := flags.Parse([]string{"--pod-stages=general"}); err != nil {
		t.Fatal(err)
	}
	got := source.Values(stored)
	for name, want := range map[string]string{
		"NODES":         "1",        // stored
		"HAULOUT":       "external", // the environment overrides the stored value
		"POD_STAGES":    "general",  // a flag overrides the environment
		"FEATURE_GATES": "",         // an empty variable is set
		"START_TIMEOUT": "2m",       // default
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

func TestParseBool(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, "false": false, "1": true, "true": true} {
		if got, err := ParseBool("KEEP_DATA", value); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", value, got, err, want)
		}
	}
	if _, err := ParseBool("KEEP_DATA", "maybe"); err == nil || !strings.Contains(err.Error(), "KEEP_DATA") {
		t.Errorf("got %v, want an error that names the variable", err)
	}
}

func unsetenv(t *testing.T, name string) {
	t.Helper()
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}
