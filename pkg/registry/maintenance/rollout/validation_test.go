// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

type (
	rollout = v1alpha1.NodeMaintenanceRollout
	limits  = []v1alpha1.RolloutLimit
	windows = []v1alpha1.RolloutWindow
)

var inAnHour = &metav1.Time{Time: start.Add(time.Hour)}

func ofAWindow(change func(*v1alpha1.RolloutWindow)) func(*rollout) {
	return func(r *rollout) {
		w := v1alpha1.RolloutWindow{Schedule: "0 22 * * *", Duration: metav1.Duration{Duration: 6 * time.Hour}}
		change(&w)
		r.Spec.Windows = windows{w}
	}
}

func ofTheTask(change func(*v1alpha1.NodeMaintenanceTask)) func(*rollout) {
	return func(r *rollout) { change(r.Spec.Template.Task) }
}

func withPlan(entries ...v1alpha1.DrainPlanEntry) func(*rollout) {
	return func(r *rollout) { r.Spec.Template.DrainPlan = entries }
}

func number(n int) *intstr.IntOrString  { return ptr.To(intstr.FromInt(n)) }
func text(s string) *intstr.IntOrString { return ptr.To(intstr.FromString(s)) }
func parameters(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprintf("p%03d", i)] = "v"
	}
	return all
}

// accepted has rollouts at the edges of what is allowed.
var accepted = map[string]func(*rollout){
	"the defaults":     func(*rollout) {},
	"the longest name": func(r *rollout) { r.Name = strings.Repeat("a", 63) },
	"all limits": func(r *rollout) {
		r.Spec.Limits = limits{{MaxUnavailable: text("1%")}, {MaxUnavailable: text("100%"), TopologyKey: "zone"}, {MaxDomains: ptr.To[int32](100), TopologyKey: "a.b/zone"}, {MaxUnavailable: number(1)}}
	},
	"a schedule with a time zone": ofAWindow(func(w *v1alpha1.RolloutWindow) { w.TimeZone = "Europe/Berlin" }),
	"a window once":               ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Schedule, w.Start = "", inAnHour }),
	"the longest window":          ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Duration.Duration = 168 * time.Hour }),
	"an expression": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.DoneWhen = "node.status.nodeInfo.kernelVersion == '6.12'"
	}),
	"32 parameters": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.Parameters = parameters(32) }),
	"the longest deadlines": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.ClaimDeadlineSeconds, task.ProgressDeadlineSeconds, task.VerifyDeadlineSeconds = ptr.To[int32](604800), ptr.To[int32](86400), ptr.To[int32](86400)
	}),
	"jobs that may finish": withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5, Behavior: ptr.To(v1alpha1.DrainBehaviorWaitCompleted), WaitSeconds: ptr.To[int32](2592000)}),
	"pods that stay":       withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5, PodType: v1alpha1.PodTypeDaemonSet, Behavior: ptr.To(v1alpha1.DrainBehaviorSkip)}),
}

// refused has rollouts that are refused, by a part of the error.
var refused = map[string]func(*rollout){
	"metadata.name: Too long":                func(r *rollout) { r.Name = strings.Repeat("a", 64) },
	"spec.nodeSelector: Required":            func(r *rollout) { r.Spec.NodeSelector = nil },
	`spec.stage: Unsupported value: "Drain"`: atStage("Drain"),
	"spec.unitKey: Invalid value":            func(r *rollout) { r.Spec.UnitKey = "a b" },
	"spec.limits[1]: Invalid value: must have exactly one of maxUnavailable and maxDomains": func(r *rollout) {
		r.Spec.Limits = limits{{MaxUnavailable: number(1)}, {MaxUnavailable: number(1), MaxDomains: ptr.To[int32](1), TopologyKey: "zone"}}
	},
	"spec.limits[0]: Invalid value: must have exactly one of":                     func(r *rollout) { r.Spec.Limits = limits{{TopologyKey: "zone"}} },
	"spec.limits[0].topologyKey: Required":                                        func(r *rollout) { r.Spec.Limits = limits{{MaxDomains: ptr.To[int32](1)}} },
	"spec.limits[0].topologyKey: Invalid value":                                   func(r *rollout) { r.Spec.Limits = limits{{MaxDomains: ptr.To[int32](1), TopologyKey: "a b"}} },
	"spec.limits[0].maxDomains: Invalid value: 101":                               func(r *rollout) { r.Spec.Limits = limits{{MaxDomains: ptr.To[int32](101), TopologyKey: "zone"}} },
	"spec.limits: Too many":                                                       func(r *rollout) { r.Spec.Limits = make(limits, 9) },
	`spec.limits[0].maxUnavailable: Invalid value: "0"`:                           func(r *rollout) { r.Spec.Limits = limits{{MaxUnavailable: number(0)}} },
	`spec.limits[0].maxUnavailable: Invalid value: "0%"`:                          func(r *rollout) { r.Spec.Limits = limits{{MaxUnavailable: text("0%")}} },
	`spec.limits[0].maxUnavailable: Invalid value: "101%"`:                        func(r *rollout) { r.Spec.Limits = limits{{MaxUnavailable: text("101%")}} },
	`spec.limits[0].maxUnavailable: Invalid value: "10"`:                          func(r *rollout) { r.Spec.Limits = limits{{MaxUnavailable: text("10")}} },
	`spec.limits[0].maxUnavailable: Invalid value: "+5%"`:                         func(r *rollout) { r.Spec.Limits = limits{{MaxUnavailable: text("+5%")}} },
	"must have 5 fields":                                                          ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Schedule = "0 22 * *" }),
	"must have no time zone; use timeZone":                                        ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Schedule = "TZ=Europe/Berlin 22 * * *" }),
	"spec.windows[0].schedule":                                                    ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Schedule = "@daily" }),
	"end of range (99) above maximum":                                             ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Schedule = "99 22 * * *" }),
	`spec.windows[0].timeZone: Invalid value: unknown time zone "Berlin"`:         ofAWindow(func(w *v1alpha1.RolloutWindow) { w.TimeZone = "Berlin" }),
	`unknown time zone "Local"; must be an IANA name`:                             ofAWindow(func(w *v1alpha1.RolloutWindow) { w.TimeZone = "Local" }),
	"spec.windows[0].timeZone: Forbidden: only with schedule":                     ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Schedule, w.Start, w.TimeZone = "", inAnHour, "UTC" }),
	"spec.windows[0]: Invalid value: must have exactly one of schedule and start": ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Start = inAnHour }),
	`spec.windows[0].duration: Invalid value: "59s": must be from 1m to 168h`:     ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Duration.Duration = 59 * time.Second }),
	`spec.windows[0].duration: Invalid value: "168h0m1s"`:                         ofAWindow(func(w *v1alpha1.RolloutWindow) { w.Duration.Duration = 168*time.Hour + time.Second }),
	"spec.windows: Too many":                                                      func(r *rollout) { r.Spec.Windows = make(windows, 17) },
	"spec.whenClosed: Unsupported":                                                func(r *rollout) { r.Spec.WhenClosed = "Stop" },
	"spec.holds[0].name: Invalid":                                                 func(r *rollout) { r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "a.b"}} },
	"spec.holds[1]: Duplicate":                                                    func(r *rollout) { r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "a"}, {Name: "a"}} },
	"spec.holds[0].stops: Unsupported":                                            func(r *rollout) { r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "a", Stops: "All"}} },
	"spec.holds[a].until: Invalid value: \"2026-11-27T09:00:00Z\": must be after from": func(r *rollout) {
		r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "a", From: inAnHour, Until: inAnHour}}
	},
	"spec.holds: Too many": func(r *rollout) {
		for i := range 17 {
			r.Spec.Holds = append(r.Spec.Holds, v1alpha1.RolloutHold{Name: fmt.Sprintf("hold-%d", i)})
		}
	},
	"spec.holds[0].reason: Too long": func(r *rollout) {
		r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "a", Reason: strings.Repeat("a", 257)}}
	},
	"spec.progressDeadlineSeconds: Invalid value: 604801": func(r *rollout) { r.Spec.ProgressDeadlineSeconds = ptr.To[int32](604801) },
	"spec.soakSeconds: Invalid value: -1":                 func(r *rollout) { r.Spec.SoakSeconds = -1 },
	"spec.maxFailed: Invalid value: -1":                   func(r *rollout) { r.Spec.MaxFailed = -1 },
	"spec.template.task.claimDeadlineSeconds: Invalid value: 604801": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.ClaimDeadlineSeconds = ptr.To[int32](604801)
	}),
	"spec.template.task.progressDeadlineSeconds: Invalid value: 59": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.ProgressDeadlineSeconds = ptr.To[int32](59)
	}),
	"spec.template.task.progressDeadlineSeconds: Invalid value: 86401": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.ProgressDeadlineSeconds = ptr.To[int32](86401)
	}),
	"spec.template.drainPlan[0].waitSeconds: Invalid value: 2592001": withPlan(v1alpha1.DrainPlanEntry{
		PodPriority: 5, Behavior: ptr.To(v1alpha1.DrainBehaviorWaitCompleted), WaitSeconds: ptr.To[int32](2592001),
	}),
	"spec.progressDeadlineSeconds: Invalid value: 59":                                 func(r *rollout) { r.Spec.ProgressDeadlineSeconds = ptr.To[int32](59) },
	"spec.soakSeconds: Invalid value: 86401":                                          func(r *rollout) { r.Spec.SoakSeconds = 86401 },
	"spec.maxFailed: Invalid value: 1001":                                             func(r *rollout) { r.Spec.MaxFailed = 1001 },
	"spec.template.task: Required":                                                    func(r *rollout) { r.Spec.Template.Task = nil },
	"spec.template.reason: Too long":                                                  func(r *rollout) { r.Spec.Template.Reason = strings.Repeat("a", 1025) },
	"spec.template.task.worker: Invalid value: \"reboot\": must be the full name of ": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.Worker = "reboot" }),
	"spec.template.task.stage: Invalid value: \"Cordon\": must be Drain for this worker": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.Worker, task.Stage = v1alpha1.WorkerClassReboot, v1alpha1.NodeTaskStageCordon
	}),
	"spec.template.task.worker: Too long":                                       ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.Worker = strings.Repeat("a", 62) + ".b" }),
	"spec.template.task.stage: Unsupported":                                     ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.Stage = "Idle" }),
	"spec.template.task.doneWhen: Invalid value: undeclared reference to 'nod'": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.DoneWhen = "nod.metadata.name == 'a'" }),
	"spec.template.task.doneWhen: Too long":                                     ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.DoneWhen = strings.Repeat(" ", 1021) + "true" }),
	"spec.template.task.parameters: Too many: 33":                               ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.Parameters = parameters(33) }),
	"take 4097 bytes, at most 4096": ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) {
		task.Parameters = map[string]string{"a": strings.Repeat("x", 4096)}
	}),
	"spec.template.task.claimDeadlineSeconds: Invalid value: 0":                           ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.ClaimDeadlineSeconds = ptr.To[int32](0) }),
	"spec.template.task.verifyDeadlineSeconds: Invalid value: 86401":                      ofTheTask(func(task *v1alpha1.NodeMaintenanceTask) { task.VerifyDeadlineSeconds = ptr.To[int32](86401) }),
	"spec.template.drainPlan[0].waitSeconds: Forbidden: only with behavior WaitCompleted": withPlan(v1alpha1.DrainPlanEntry{WaitSeconds: ptr.To[int32](5)}),
	"spec.template.drainPlan[0].behavior: Invalid value: \"WaitCompleted\": only with podType Default": withPlan(v1alpha1.DrainPlanEntry{
		PodType: v1alpha1.PodTypeStatic, Behavior: ptr.To(v1alpha1.DrainBehaviorWaitCompleted),
	}),
	"spec.template.drainPlan[1]: Invalid value: \"Default 1\": must not come after": withPlan(v1alpha1.DrainPlanEntry{PodPriority: 2}, v1alpha1.DrainPlanEntry{PodPriority: 1}),
	"spec: Forbidden: too large": func(r *rollout) { r.Spec.Template.DrainPlan = largePlan() },
}

func largePlan() []v1alpha1.DrainPlanEntry {
	plan := make([]v1alpha1.DrainPlanEntry, 100)
	for i := range plan {
		plan[i] = v1alpha1.DrainPlanEntry{PodPriority: int32(i), PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "a", Operator: metav1.LabelSelectorOpIn, Values: strings.Split(strings.Repeat(strings.Repeat("x", 50)+",", 110)+"x", ","),
		}}}}
	}
	return plan
}

func TestValidate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd)
	for name, modify := range accepted {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			if _, err := r.create(ann, modify); err != nil {
				t.Error(err)
			}
		})
	}
	for want, modify := range refused {
		t.Run(want, func(t *testing.T) {
			_, err := r.create(ann, modify)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestValidateUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		from   v1alpha1.RolloutStage
		change func(*maintenance.NodeMaintenanceRollout)
		want   string
	}{
		"a stage forward":       {"Idle", setStage("Roll"), ""},
		"two stages forward":    {"Idle", setStage("Complete"), ""},
		"back from Roll":        {"Roll", setStage("Idle"), "spec.stage: Invalid value: \"Idle\": must not go back from Roll to Idle; allowed: Roll, Complete"},
		"back from Complete":    {"Complete", setStage("Roll"), "must not go back from Complete to Roll; allowed: Complete"},
		"the label of units":    {"Idle", func(r *maintenance.NodeMaintenanceRollout) { r.Spec.UnitKey = "rack" }, "spec.unitKey: Invalid value: is immutable; create another rollout"},
		"the work":              {"Idle", func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Template.Task.DoneWhen = "true" }, "spec.template: Invalid value: is immutable"},
		"limits while it rolls": {"Roll", func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Limits[0].MaxUnavailable = number(5) }, ""},
		"bad limits":            {"Roll", func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Limits[0].MaxUnavailable = number(0) }, "spec.limits[0].maxUnavailable"},
		"limits at the end":     {"Complete", func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 5 }, "spec.maxFailed: Forbidden: may only change in the stages Idle and Roll"},
		"a hold at the end":     {"Complete", addHold(maintenance.RolloutHold{Name: "a"}), "spec.holds: Forbidden"},
		"all with the end": {"Roll", func(r *maintenance.NodeMaintenanceRollout) {
			r.Spec.Stage, r.Spec.MaxFailed = maintenance.RolloutStageComplete, 5
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, atStage(test.from))
			switch _, err := r.update(ann, test.change); {
			case test.want == "" && err != nil, test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestValidateStatus(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, atStage(v1alpha1.RolloutStageRoll))
	unit := func(name string, nodes int) maintenance.RolloutUnit {
		return maintenance.RolloutUnit{
			Unit: name, Maintenance: "a-" + name, Phase: "Starting", Since: metav1.NewTime(start), Nodes: make([]maintenance.NodeReference, nodes),
		}
	}
	many := func(units, nodes int) func(*maintenance.NodeMaintenanceRollout) {
		return func(r *maintenance.NodeMaintenanceRollout) {
			r.Status.Current = nil
			for i := range units {
				u := unit(fmt.Sprint(i), nodes)
				for j := range u.Nodes {
					u.Nodes[j] = maintenance.NodeReference{Name: fmt.Sprintf("n-%d-%d", i, j), UID: "u"}
				}
				r.Status.Current = append(r.Status.Current, u)
			}
		}
	}
	for want, change := range map[string]func(*maintenance.NodeMaintenanceRollout){
		"status.current: Too many: 201":         many(201, 1),
		"nodes in all units together":           many(32, 63),
		"status.current[0].nodes: Too many: 65": many(1, 65),
		"status.newestNodeTimestamp":            func(r *maintenance.NodeMaintenanceRollout) { r.Status.NewestNodeTimestamp = inAnHour },
		"status.current[0].phase: Unsupported": func(r *maintenance.NodeMaintenanceRollout) {
			u := unit("a", 0)
			u.Phase = "Dancing"
			r.Status.Current = []maintenance.RolloutUnit{u}
		},
		"status.conditions[0].reason": func(r *maintenance.NodeMaintenanceRollout) {
			r.Status.Conditions = []metav1.Condition{{Type: "Progressing", Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(start)}}
		},
	} {
		if _, err := r.updateStatus(change); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for _, change := range []func(*maintenance.NodeMaintenanceRollout){many(200, 10), many(31, 64), many(0, 0)} {
		if _, err := r.updateStatus(change); err != nil {
			t.Errorf("the status is refused: %v", err)
		}
	}
}
