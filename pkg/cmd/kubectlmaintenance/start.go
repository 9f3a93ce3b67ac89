// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// startOptions are the flags of start; drain and preview share most of them.
type startOptions struct {
	selector, stage, reason, plan, name, newNodes string
	allowEmpty                                    bool
	waitOptions
}

const startExample = `  # Drain a node: its pods leave within their disruption budgets
  kubectl maintenance start node-003

  # Drain two nodes together and wait until they are empty, for an hour at most
  kubectl maintenance start node-003 node-004 --reason="replace memory" --wait --timeout=1h

  # Keep new pods off the nodes with a label; nodes that get the label later join
  kubectl maintenance start -l pool=blue --stage=Cordon --name=blue-pool

  # The same, and nodes that an autoscaler creates meanwhile join as well
  kubectl maintenance start -l pool=blue --new-nodes=Join

  # What would the server answer?
  kubectl maintenance start -l pool=blue --dry-run=server -o yaml`

func (e *environment) newStartCommand() *cobra.Command {
	o := &startOptions{waitOptions: waitOptions{output: outputOfObjects("created")}}
	cmd := &cobra.Command{
		Use:   "start (NODE... | -l SELECTOR)",
		Short: "Start a maintenance: cordon nodes, or drain them",
		Long: `Start a maintenance of nodes, which are given by name or selected by label.

The server carries out the maintenance, even after this command has ended. With --selector, nodes that get the labels
later join the maintenance. Nodes that are created later do not join, unless --new-nodes=Join is given: an autoscaler
would otherwise create new nodes only for the maintenance to drain them.

Before a drain begins, the command previews it and prints what will block it: budgets that never allow an eviction,
pods that will not be recreated, workloads without a budget. This does not stop the drain. It needs the right to get
nodemaintenances/preview; "kubectl maintenance preview" prints all of it without a drain.

You need the right to create nodemaintenances and to maintain the nodes. The command prints warnings of the server. It
asks for a confirmation if you select all nodes or all control-plane nodes of the cluster, unless --yes is given. It
refuses a selector that matches no node, unless --allow-empty is given.`,
		Example:           startExample,
		SuggestFor:        []string{"create", "cordon", "begin", "new"},
		ValidArgsFunction: e.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.start(cmd.Context(), o, args)
		},
	}
	e.addStartFlags(cmd, o)
	cmd.Flags().StringVar(&o.stage, "stage", string(v1alpha1.NodeMaintenanceStageDrain),
		"Stage of the new maintenance: Idle (only announce it), Cordon or Drain.")
	_ = cmd.RegisterFlagCompletionFunc("stage", cobra.FixedCompletions(startStages, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&o.plan, "plan", "",
		"A YAML or JSON file with the drain plan, or - for the standard input: a list of entries, or an object with drainPlan "+
			"or spec.drainPlan. Without a plan, pods leave in the order of their priorities.")
	cmd.Flags().BoolVar(&o.wait, "wait", false, "Wait until the stage is reached: the nodes are cordoned, or drained.")
	o.addKeptFlag(cmd)
	return cmd
}

var startStages = []string{string(v1alpha1.NodeMaintenanceStageIdle), string(v1alpha1.NodeMaintenanceStageCordon), string(v1alpha1.NodeMaintenanceStageDrain)}

func (e *environment) addStartFlags(cmd *cobra.Command, o *startOptions) {
	flags := cmd.Flags()
	flags.StringVarP(&o.selector, "selector", "l", "",
		"Select nodes by label, including nodes that get the labels later: =, ==, !=, in, notin, exists (-l pool=blue,zone in (a,b)).")
	flags.StringVar(&o.newNodes, "new-nodes", string(v1alpha1.NewNodesPolicyIgnore),
		"What to do with matching nodes that are created after the maintenance left stage Idle: Ignore (they do not join) or Join (they join).")
	flags.StringVar(&o.reason, "reason", "",
		"Why the nodes are under maintenance. Status, events and node conditions show this text. At most 1024 bytes.")
	flags.StringVar(&o.name, "name", "", "Name of the maintenance. The default is derived from the nodes or the selector.")
	flags.Var(&o.timeout, "timeout", "How long to wait, such as 1h30m; 0 waits forever. After a timeout the maintenance continues.")
	flags.BoolVar(&o.allowEmpty, "allow-empty", false,
		"Start the maintenance even if no node matches --selector now. Nodes that get the labels later join it.")
	flags.BoolVarP(&o.yes, "yes", "y", false, "Do not ask for a confirmation if all nodes or all control-plane nodes are selected.")
	o.dryRun.addFlag(cmd)
	o.output.addFlags(cmd)
	_ = cmd.RegisterFlagCompletionFunc("selector", e.completeLabels)
	_ = cmd.RegisterFlagCompletionFunc("new-nodes", cobra.FixedCompletions(newNodesPolicies, cobra.ShellCompDirectiveNoFileComp))
}

// newNodesPolicies are the values of --new-nodes.
var newNodesPolicies = []string{string(v1alpha1.NewNodesPolicyIgnore), string(v1alpha1.NewNodesPolicyJoin)}

// start creates a maintenance and, with --wait, waits for the result.
func (e *environment) start(ctx context.Context, o *startOptions, args []string) error {
	stage, err := stageOf(o.stage, startStages)
	if err != nil {
		return err
	}
	if err := cmp.Or(o.needsWait(), o.validate()); err != nil {
		return err
	}
	choice, err := chooseNodes(args, o.selector)
	if err != nil {
		return err
	}
	newNodes, err := oneOf("--new-nodes", o.newNodes, newNodesPolicies)
	if err != nil {
		return err
	}
	nm, err := e.maintenanceOf(o, choice, stage)
	if err != nil {
		return err
	}
	nm.Spec.NewNodes = v1alpha1.NewNodesPolicy(newNodes)
	if o.dryRun.strategy == dryRunClient {
		return e.write(o.output, nm)
	}
	c, err := e.connect()
	if err != nil {
		return err
	}
	if err := mayCreate(ctx, c); err != nil {
		return err
	}
	if err := e.checkNodes(ctx, c, choice, nodeChecks{stage: stage, yes: o.yes || o.dryRun.isOn(), allowEmpty: o.allowEmpty}); err != nil {
		return err
	}
	d := newDrainer(c, &o.waitOptions)
	note := ""
	if stage == v1alpha1.NodeMaintenanceStageDrain && !o.dryRun.isOn() {
		// A refusal, for example of the name or of a node, comes before the preview.
		rehearsal := *d
		rehearsal.DryRun = true
		if _, err := rehearsal.Start(ctx, nm, stage); err != nil {
			return err
		}
		note, err = e.previewFirst(ctx, nm.Name, func(ctx context.Context) (*v1alpha1.NodeMaintenancePreview, error) {
			return e.previewTemporary(ctx, c, nm, choice.title)
		})
		if err != nil {
			return err
		}
	}
	created, err := d.Start(ctx, nm, stage)
	if err != nil {
		return err
	}
	if note != "" {
		e.screen(e.ErrOut).Printf("%s", note)
	}
	if err := e.write(o.output, created); err != nil {
		return err
	}
	if o.dryRun.isOn() {
		return nil
	}
	if o.wait {
		return e.awaitStage(ctx, c, created, stage, &o.waitOptions)
	}
	e.hint(o.output, "Watch it: kubectl maintenance status %s --watch", created.Name)
	return nil
}

// hint prints a next step if the output is a terminal.
func (e *environment) hint(o *output, format string, args ...any) {
	if s := e.screen(e.ErrOut); s.Live() && o.format() == "" {
		s.Printf(format, args...)
	}
}

func (e *environment) maintenanceOf(o *startOptions, choice *chosen, stage v1alpha1.NodeMaintenanceStage) (*v1alpha1.NodeMaintenance, error) {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: o.name},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: choice.selector, Stage: stage, Reason: o.reason},
	}
	if nm.Name == "" {
		nm.Name = e.nameFor(choice.title)
	}
	if o.plan == "" {
		return nm, nil
	}
	content, err := e.read(o.plan)
	if err != nil {
		return nil, fmt.Errorf("--plan: %w", err)
	}
	if nm.Spec.DrainPlan, err = parsePlan(content); err != nil {
		return nil, fmt.Errorf("--plan %s: %w", o.plan, err)
	}
	return nm, nil
}

// read returns the content of a file, or of the standard input.
func (e *environment) read(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(e.In)
	}
	return os.ReadFile(path)
}

// parsePlan parses a drain plan. Unknown fields are errors: a misspelled podSelector would extend
// an entry to all pods.
func parsePlan(content []byte) ([]v1alpha1.DrainPlanEntry, error) {
	var list []v1alpha1.DrainPlanEntry
	listErr := yaml.UnmarshalStrict(content, &list)
	if listErr == nil {
		return notEmpty(list)
	}
	var parts map[string]any
	if err := yaml.Unmarshal(content, &parts); err != nil {
		// The content is neither a list nor a maintenance. Return the error about the list, which
		// is clearer.
		return nil, listErr
	}
	if _, isObject := parts["spec"]; isObject {
		var nm v1alpha1.NodeMaintenance
		if err := yaml.UnmarshalStrict(content, &nm); err != nil {
			return nil, err
		}
		return notEmpty(nm.Spec.DrainPlan)
	}
	var part struct {
		DrainPlan []v1alpha1.DrainPlanEntry `json:"drainPlan"`
	}
	if err := yaml.UnmarshalStrict(content, &part); err != nil {
		return nil, err
	}
	return notEmpty(part.DrainPlan)
}

func notEmpty(plan []v1alpha1.DrainPlanEntry) ([]v1alpha1.DrainPlanEntry, error) {
	if len(plan) == 0 {
		return nil, errors.New("drainPlan not found")
	}
	return plan, nil
}

// stageOf parses the name of a stage and ignores its case.
func stageOf(text string, allowed []string) (v1alpha1.NodeMaintenanceStage, error) {
	stage, err := oneOf("stage", text, allowed)
	return v1alpha1.NodeMaintenanceStage(stage), err
}

// oneOf returns the allowed value that equals a text; it ignores case.
func oneOf(what, text string, allowed []string) (string, error) {
	for _, value := range allowed {
		if strings.EqualFold(value, text) {
			return value, nil
		}
	}
	return "", fmt.Errorf("invalid %s %q: it must be one of %s", what, text, strings.Join(allowed, ", "))
}
