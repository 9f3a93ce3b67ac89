// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	fluxstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

const (
	current    = status.CurrentStatus
	inProgress = status.InProgressStatus
	failed     = status.FailedStatus
)

// healthOf has the health of each object in testdata, by the name of its file without the kind. The
// first ones are the words of the column STATUS or STATE.
var healthOf = map[string]map[string]status.Status{
	"nodemaintenance": {
		"Idle": current, "Cordoned": current, "Drained": current, "Complete": current,
		"Stalled": failed,
		"NoNodes": inProgress, "NotAuthorized": inProgress, "NotCordoned": inProgress, "Cordoning": inProgress,
		"Draining": inProgress, "Waiting": inProgress, "Blocked": inProgress, "Failing": inProgress,
		"Paused": inProgress, "Releasing": inProgress,
		// The answers to a create request, and to a change of the stage that no controller has
		// observed.
		"created-Idle": inProgress, "created-Cordon": inProgress, "created-Drain": inProgress, "changed": inProgress,
	},
	"evacuation": {
		"Gone": current, "Ended": current,
		"Cancelled": failed,
		"Waiting":   inProgress, "Moving": inProgress, "Blocked": inProgress,
		"created": inProgress,
	},
}

// argoOf has the health in Argo CD for each status of kstatus.
var argoOf = map[status.Status]string{current: "Healthy", inProgress: "Progressing", failed: "Degraded"}

// TestHealth computes the health of each object with kstatus, with Flux' version of it, with Flux'
// expressions and with the script of Argo CD.
func TestHealth(t *testing.T) {
	read, err := cel.NewStatusReader(fluxChecks(t))
	if err != nil {
		t.Fatal(err)
	}
	expressions := read(meta.NewDefaultRESTMapper(nil))
	script := argoCD(t, "resource.customizations.health."+group+"_NodeMaintenance")
	for kind, all := range healthOf {
		for name, want := range all {
			t.Run(kind+"/"+name, func(t *testing.T) {
				object := load(t, kind+"-"+name)
				got, err := status.Compute(object)
				if err != nil || got.Status != want {
					t.Errorf("kstatus: got %+v, error %v, want %s", got, err, want)
				}
				flux, err := fluxstatus.Compute(object)
				if err != nil || string(flux.Status) != string(want) {
					t.Errorf("kstatus of Flux: got %+v, error %v, want %s", flux, err, want)
				}
				expressed, err := expressions.ReadStatusForObject(t.Context(), nil, object)
				if err != nil || expressed.Error != nil || string(expressed.Status) != string(want) {
					t.Errorf("expressions of Flux: got %+v, error %v, want %s", expressed, err, want)
				}
				argo := runScript(t, script, object)
				if argo.status != argoOf[want] || argo.message == "" {
					t.Errorf("script of Argo CD: got %+v, want %s and a message", argo, argoOf[want])
				}
			})
		}
	}
}

// TestPageSaysTheSame compares the tables of the page with what was computed.
func TestPageSaysTheSame(t *testing.T) {
	for kind, header := range map[string]string{
		"nodemaintenance": "| STATUS of a NodeMaintenance |", "evacuation": "| STATE of an Evacuation |",
	} {
		said := map[string][]string{}
		for _, cells := range table(t, header) {
			for word := range strings.SplitSeq(cells[0], ", ") {
				word, _, _ = strings.Cut(word, ":")
				said[word] = cells[1:]
			}
		}
		for word, want := range healthOf[kind] {
			got := said[word]
			if got == nil {
				got = said["all others"]
			}
			if word != "created" && (len(got) != 2 || got[0] != string(want) || got[1] != argoOf[want]) {
				t.Errorf("%s: %s says that a %s in the state %s is %q, want %s and %s", page, header, kind, word, got, want, argoOf[want])
			}
		}
	}
}

// TestEachFileIsUsed fails if an object in testdata is in no test, as after a word was renamed.
func TestEachFileIsUsed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		kind, word, _ := strings.Cut(name, "-")
		if _, known := healthOf[kind][word]; !known && !usedElsewhere[name] {
			t.Errorf("%s is not used", file)
		}
	}
}

// TestAnObjectOfAnOlderServer has no condition yet: the tools wait or, like kstatus, cannot know.
func TestAnObjectOfAnOlderServer(t *testing.T) {
	object := load(t, "nodemaintenance-created-Drain")
	unstructured.RemoveNestedField(object.Object, "status", "conditions")
	read, err := cel.NewStatusReader(fluxChecks(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(meta.NewDefaultRESTMapper(nil)).ReadStatusForObject(t.Context(), nil, object)
	if err != nil || got.Error != nil || got.Status != fluxstatus.InProgressStatus {
		t.Errorf("expressions of Flux: got %+v, error %v, want InProgress", got, err)
	}
	script := argoCD(t, "resource.customizations.health."+group+"_NodeMaintenance")
	if got := runScript(t, script, object); got.status != "Progressing" {
		t.Errorf("script of Argo CD: got %+v, want Progressing", got)
	}
}

// TestExpressionsAreForBothKinds checks that Flux uses the expressions of the page at all.
func TestExpressionsAreForBothKinds(t *testing.T) {
	read, err := cel.NewStatusReader(fluxChecks(t))
	if err != nil {
		t.Fatal(err)
	}
	reader := read(meta.NewDefaultRESTMapper(nil))
	for _, kind := range []string{"NodeMaintenance", "Evacuation"} {
		if !reader.Supports(schema.GroupKind{Group: group, Kind: kind}) {
			t.Errorf("%s has no expressions for %s", page, kind)
		}
	}
}

// argoHealth is the result of a health script of Argo CD.
type argoHealth struct{ status, message string }

// runScript runs a health script as Argo CD does: with the same interpreter, with the packages
// package, base and table, and for at most a second. Argo CD also opens a part of os, which the
// script does not need: a script that uses another package fails here.
func runScript(t *testing.T, script string, object *unstructured.Unstructured) argoHealth {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
	} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luaValue(t, state, object.Object))
	if err := state.DoString(script); err != nil {
		t.Fatalf("run the script: %v", err)
	}
	result, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns a %s, want a table", state.Get(-1).Type())
	}
	return argoHealth{status: lua.LVAsString(result.RawGetString("status")), message: lua.LVAsString(result.RawGetString("message"))}
}

// luaValue converts a value of an object.
func luaValue(t *testing.T, state *lua.LState, value any) lua.LValue {
	t.Helper()
	switch value := value.(type) {
	case nil:
		return lua.LNil
	case bool:
		return lua.LBool(value)
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		table := state.NewTable()
		for _, element := range value {
			table.Append(luaValue(t, state, element))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, element := range value {
			table.RawSetString(key, luaValue(t, state, element))
		}
		return table
	}
	t.Fatalf("an object has a value of type %T", value)
	return nil
}
