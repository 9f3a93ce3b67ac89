// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// dashboard has the checked fields of the dashboard.
type dashboard struct {
	Title, UID string
	Panels     []panel
	Templating struct{ List []variable }
	// The annotations of Grafana are marks in all panels.
	Annotations struct {
		List []struct{ Name, Expr, Step string }
	}
}

// panel has the checked fields of a panel of the dashboard.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct {
			Mappings []struct {
				Options map[string]struct{ Text string }
			}
		}
	}
	Targets []struct {
		RefID, Expr, Format string
		Instant             bool
	}
}

// variable is a choice of the user, which expressions contain as $name.
type variable struct {
	Name, Type, AllValue string
	// Query is an object, or for the data source a string.
	Query json.RawMessage
}

// metric returns the metric whose label values are the choices.
func (v *variable) metric(t *testing.T) string {
	t.Helper()
	var query struct{ Query string }
	if err := json.Unmarshal(v.Query, &query); err != nil {
		t.Fatalf("variable %s: %v", v.Name, err)
	}
	match := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(query.Query)
	if match == nil {
		t.Fatalf("variable %s has the query %q, want label_values(METRIC, LABEL)", v.Name, query.Query)
	}
	return fmt.Sprintf("group by (%s) (%s)", match[2], match[1])
}

// readDashboard returns the dashboard. Its expressions have the values that Grafana inserts for
// "All" and for a time range of three hours.
func readDashboard(t *testing.T) dashboard {
	t.Helper()
	content := string(read(t, "dashboard.json"))
	decode := func(content string) (d dashboard) {
		if err := json.Unmarshal([]byte(content), &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	values := []string{"$__rate_interval", "5m", "$__range", "3h"}
	for _, v := range decode(content).Templating.List {
		if v.Type == "query" {
			values = append(values, "$"+v.Name, v.AllValue)
		}
	}
	d := decode(strings.NewReplacer(values...).Replace(content))
	if d.Title == "" || d.UID == "" || len(d.Panels) == 0 {
		t.Fatalf("dashboard %q (%q) has %d panels", d.Title, d.UID, len(d.Panels))
	}
	return d
}

// panelOf returns the panel with a title.
func panelOf(t *testing.T, title string) *panel {
	t.Helper()
	d := readDashboard(t)
	i := slices.IndexFunc(d.Panels, func(p panel) bool { return p.Title == title })
	if i < 0 {
		t.Fatalf("panel %q not found", title)
	}
	return &d.Panels[i]
}

func TestPanels(t *testing.T) {
	ids := map[int]bool{}
	all := readDashboard(t).Panels
	for i, p := range all {
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || ids[p.ID] {
			t.Errorf("panel %d (%q): it needs a title, a description, an expression and a unique ID",
				p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 {
			t.Errorf("panel %q is outside the 24 columns: %+v", p.Title, p.GridPos)
		}
		for _, other := range all[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, other.Title)
			}
		}
		for _, target := range p.Targets {
			if p.Type == "table" && (!target.Instant || target.Format != "table") {
				t.Errorf("panel %q: a table has the present values, so its expression must be instant and have the format table", p.Title)
			}
		}
	}
}

// worldOfDashboard has series of each metric that the dashboard uses: a blocked drain, a shutdown,
// agents with problems, work of the server in each minute.
const worldOfDashboard = `
haulout_nodemaintenance_maintenances{stage="Drain"} 2x180
haulout_nodemaintenance_nodes{stage="Drain"} 4x180
haulout_nodemaintenance_drains_blocked 1x180
haulout_nodemaintenance_paused 1x180
haulout_nodemaintenance_oldest_stage_start_timestamp_seconds{stage="Drain"} 60x180
haulout_leader{instance="a"} 1x180
haulout_controllers_off{instance="b",reason="CheckFails"} 1x180
haulout_nodemaintenance_info{name="kernel-update",stage="Drain",status="Blocked"} 1x180
haulout_nodemaintenance_pods{name="kernel-update",state="blocked"} 2x180
haulout_nodemaintenance_pods{name="kernel-update",state="evacuating"} 3x180
haulout_nodemaintenance_pods{name="kernel-update",state="pending"} 1x180
haulout_nodemaintenance_pods{name="kernel-update",state="gone"} 4x180
haulout_evacuation_blocked{reason="PodDisruptionBudget"} 2x180
haulout_evictions_total{answer="accepted"} 0+1x180
haulout_eviction_lanes{state="closed"} 1x180
haulout_evictions_in_flight 1x180
haulout_evacuation_duration_seconds_bucket{le="1"} 0+1x180
haulout_evacuation_duration_seconds_bucket{le="+Inf"} 0+2x180
haulout_evacuation_completed_total{reason="PodDeleted"} 0+1x180
haulout_evacuation_handovers_total 0+1x180
haulout_nodemaintenance_cordons_restored_total 0+1x180
haulout_nodemaintenance_cordon_fights_total 0+1x180
haulout_nodemaintenance_sync_errors_total 0+1x180
haulout_evacuation_sync_errors_total 0+1x180
haulout_nodemaintenance_node_errors_total 0+1x180
haulout_surge_sync_errors_total 0+1x180
haulout_nodemaintenance_sync_duration_seconds_bucket{le="1"} 0+1x180
haulout_nodemaintenance_sync_duration_seconds_bucket{le="+Inf"} 0+2x180
apiserver_request_total{job="haulout-apiserver",verb="GET"} 0+1x180
aggregator_unavailable_apiservice{name="v1alpha1.maintenance.haulout.dev"} 1x180
process_cpu_seconds_total{job="haulout-apiserver",instance="a"} 0+1x180
process_resident_memory_bytes{job="haulout-apiserver",instance="a"} 1x180
haulout_embedded_etcd_database_bytes 1x180
haulout_embedded_etcd_quota_bytes 1x180
haulout_embedded_etcd_disk_free_bytes 1x180
haulout_preemption_waiting_pods 1x180
haulout_node_agent_lock_held{instance="node-1"} 1x180
haulout_node_agent_lock_held{instance="node-2"} 0x180
haulout_node_agent_problems{instance="node-1"} 1x180
haulout_node_agent_shutdown_phase{instance="node-1",phase="Maintaining"} 1x180
haulout_node_agent_shutdown_seconds_left{instance="node-1"} 90x180`

// evaluate returns the values of an expression at the given minutes of a world, by their labels.
func evaluate(t *testing.T, expression, world string, minutes ...int) []map[string]float64 {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(strings.TrimSpace(world), "\n", "\n  "))
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	results := make([]map[string]float64, 0, len(minutes))
	for _, minute := range minutes {
		query, err := engine.NewInstantQuery(t.Context(), storage, nil, expression, time.Unix(int64(minute)*60, 0))
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		results = append(results, byLabels(vector))
		query.Close()
	}
	return results
}

func byLabels(vector promql.Vector) map[string]float64 {
	values := map[string]float64{}
	for _, sample := range vector {
		values[sample.Metric.String()] = sample.F
	}
	return values
}

// TestPanelsHaveValues evaluates each expression of the dashboard in a world that has something to
// show in each panel.
func TestPanelsHaveValues(t *testing.T) {
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			t.Run(p.Title+" "+target.RefID, func(t *testing.T) {
				values := evaluate(t, target.Expr, worldOfDashboard, 180)[0]
				if len(values) == 0 {
					t.Errorf("%s has no value", target.Expr)
				}
				for labels, value := range values {
					if math.IsNaN(value) {
						t.Errorf("%s%s is not a number", target.Expr, labels)
					}
				}
			})
		}
	}
}

// TestTimelineShowsEachStatus checks that the state timeline has a number, a text and an order for
// each status of a maintenance.
func TestTimelineShowsEachStatus(t *testing.T) {
	source, err := os.ReadFile("../../pkg/apis/maintenance/glance/glance.go")
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`(?m)^\tStatus\w+ +StatusWord = "(\w+)"`).FindAllSubmatch(source, -1)
	if len(words) < 10 {
		t.Fatalf("found only %d words in package glance", len(words))
	}
	timeline := panelOf(t, "Status of each maintenance")
	mappings := timeline.FieldConfig.Defaults.Mappings
	if timeline.Type != "state-timeline" || len(mappings) != 1 {
		t.Fatalf("the panel has the type %s and %d mappings", timeline.Type, len(mappings))
	}
	for _, word := range words {
		status := string(word[1])
		if status == "Complete" {
			continue // the maintenance has no sample any more
		}
		world := fmt.Sprintf("haulout_nodemaintenance_info{name=\"a\",stage=\"Drain\",status=%q} 1x5", status)
		values := evaluate(t, timeline.Targets[0].Expr, world, 5)[0]
		if got := mappings[0].Options[fmt.Sprint(values[`{name="a"}`])].Text; got != status {
			t.Errorf("the timeline shows %q for status %s", got, status)
		}
	}
	// Of two shutdowns, one is blocked.
	world := `haulout_nodemaintenance_info{name="node-shutdown",stage="Drain",status="Draining"} 1x5
haulout_nodemaintenance_info{name="node-shutdown",stage="Drain",status="Blocked"} 1x5`
	values := evaluate(t, timeline.Targets[0].Expr, world, 5)[0]
	if got := mappings[0].Options[fmt.Sprint(values[`{name="node-shutdown"}`])].Text; len(values) != 1 || got != "Blocked" {
		t.Errorf("the timeline shows %q for %v, want Blocked", got, values)
	}
}

func TestBlockedNow(t *testing.T) {
	world := `
haulout_nodemaintenance_info{name="stuck",stage="Drain",status="Blocked"} 1x5
haulout_nodemaintenance_pods{name="stuck",state="blocked"} 3x5
haulout_nodemaintenance_info{name="refused",stage="Cordon",status="NotAuthorized"} 1x5
haulout_nodemaintenance_pods{name="refused",state="blocked"} 0x5
haulout_nodemaintenance_info{name="partly",stage="Drain",status="Draining"} 1x5
haulout_nodemaintenance_pods{name="partly",state="blocked"} 1x5
haulout_nodemaintenance_info{name="moves",stage="Drain",status="Draining"} 1x5
haulout_nodemaintenance_pods{name="moves",state="blocked"} 0x5
haulout_nodemaintenance_info{name="node-shutdown",stage="Drain",status="Stalled"} 2x5
haulout_nodemaintenance_info{name="node-shutdown",stage="Drain",status="Draining"} 1x5
haulout_nodemaintenance_pods{name="node-shutdown",state="blocked"} 2x5`
	got := evaluate(t, panelOf(t, "Blocked now").Targets[0].Expr, world, 5)[0]
	want := map[string]float64{
		`{name="stuck", stage="Drain", status="Blocked"}`:          3,
		`{name="refused", stage="Cordon", status="NotAuthorized"}`: 0,
		`{name="partly", stage="Drain", status="Draining"}`:        1,
		`{name="node-shutdown", stage="Drain", status="Stalled"}`:  2,
		`{name="node-shutdown", stage="Drain", status="Draining"}`: 2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestAnnotationsMarkStages: Grafana marks each minute in which the expression has a value, which
// must be the minute in which a maintenance enters a stage. A change of the status, or a new leader
// that begins to count, is no new stage.
func TestAnnotationsMarkStages(t *testing.T) {
	annotations := readDashboard(t).Annotations.List
	if len(annotations) != 1 || annotations[0].Step != "60s" {
		t.Fatalf("the annotations are %v", annotations)
	}
	world := `
haulout_nodemaintenance_info{instance="a",name="a",stage="Cordon",status="Cordoned"} _x10 1x9
haulout_nodemaintenance_info{instance="a",name="a",stage="Drain",status="Draining"} _x20 1x9
haulout_nodemaintenance_info{instance="a",name="a",stage="Drain",status="Blocked"} _x30 1x9
haulout_nodemaintenance_info{instance="b",name="a",stage="Drain",status="Blocked"} _x55 1x60`
	minutes := make([]int, 100)
	for i := range minutes {
		minutes[i] = i
	}
	var marked []string
	for minute, values := range evaluate(t, annotations[0].Expr, world, minutes...) {
		for labels := range values {
			marked = append(marked, fmt.Sprint(minute, " ", labels))
		}
	}
	want := []string{`10 {name="a", stage="Cordon"}`, `20 {name="a", stage="Drain"}`}
	if !slices.Equal(marked, want) {
		t.Errorf("the annotations are in %q, want %q", marked, want)
	}
}
