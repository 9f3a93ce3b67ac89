// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const drainExample = `  # Drain a node, as kubectl drain does, and wait until it is empty
  kubectl maintenance drain node-003

  # Flags of kubectl drain are accepted
  kubectl maintenance drain node-003 --ignore-daemonsets --delete-emptydir-data --timeout=30m

  # Several nodes are drained together, not one after the other
  kubectl maintenance drain -l pool=blue`

// drainFlags are the flags of kubectl drain that have no effect on the drain.
type drainFlags struct {
	force, deleteEmptyDirData, disableEviction bool
	gracePeriod, skipWaitForDelete             int
	podSelector                                string
	chunkSize                                  int64
}

func (e *environment) newDrainCommand() *cobra.Command {
	o := &startOptions{waitOptions: waitOptions{output: outputOfObjects("created"), wait: true}, stage: string(v1alpha1.NodeMaintenanceStageDrain)}
	var habits drainFlags
	cmd := &cobra.Command{
		Use:   "drain (NODE... | -l SELECTOR)",
		Short: "Drain nodes as kubectl drain does, and wait until they are empty",
		Long: `Drain nodes and wait until they are empty: start --stage=Drain --wait, with the flags of kubectl drain.

What is different:
  - All nodes are cordoned before the first pod leaves, and drained together.
  - Budgets are always respected. The command waits for pods that a budget blocks, and prints who must act.
  - Pods without a controller and pods with emptyDir volumes are evicted without a question. Before the drain begins,
    the command prints what will block it and which pods will not be recreated; "kubectl maintenance preview NODE"
    prints this without a drain.
  - DaemonSet pods leave as well, after all others. Static pods, and DaemonSet pods that would be recreated on the
    node, are kept and listed. The exit code is then 6, or 0 with --ignore-daemonsets.
  - Interrupting this command does not stop the drain. "kubectl maintenance pause NAME" stops it until "resume NAME";
    "cancel NAME" deletes the maintenance.
  - After the work, run "kubectl maintenance complete NAME" instead of kubectl uncordon.

The command accepts flags of kubectl drain that are not needed here, and prints a note. It refuses flags for something
that Haulout does not do.`,
		Example:           drainExample,
		ValidArgsFunction: e.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			notes, err := habits.check(cmd.Flags())
			if err != nil {
				return err
			}
			for _, note := range notes {
				e.screen(e.ErrOut).Printf("Note: %s", note)
			}
			o.wait = !o.dryRun.isOn()
			if !o.wait {
				o.timeout = timeout{}
			}
			return e.start(cmd.Context(), o, args)
		},
	}
	e.addStartFlags(cmd, o)
	o.addKeptFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&habits.deleteEmptyDirData, "delete-emptydir-data", false, "Not needed: pods with emptyDir volumes leave like all other pods.")
	flags.BoolVar(&habits.force, "force", false,
		"Not needed: pods without a controller leave like all other pods, within their budgets. They are not recreated.")
	flags.IntVar(&habits.skipWaitForDelete, "skip-wait-for-delete-timeout", 0, "Not needed: pods that do not stop are listed with the reason.")
	flags.Int64Var(&habits.chunkSize, "chunk-size", 500, "Not needed: the server lists the pods, not this command.")
	flags.BoolVar(&habits.disableEviction, "disable-eviction", false, "Refused: budgets are always respected.")
	flags.IntVar(&habits.gracePeriod, "grace-period", -1,
		"Refused, unless negative: the pod's terminationGracePeriodSeconds applies.")
	flags.StringVar(&habits.podSelector, "pod-selector", "", "Refused: start --plan orders the pods, and keeps those with behavior Skip.")
	return cmd
}

// check returns notes about flags that are not needed, and an error about flags that Haulout does
// not support.
func (d *drainFlags) check(flags *pflag.FlagSet) (notes []string, err error) {
	var refused []string
	refuse := func(flag, why string) {
		refused = append(refused, fmt.Sprintf("--%s has no counterpart here: %s", flag, why))
	}
	if d.disableEviction {
		refuse("disable-eviction", "disruption budgets are always respected. \"kubectl maintenance blockers\" lists the budgets that block a drain, and what their owners can do")
	}
	if d.gracePeriod >= 0 {
		refuse("grace-period", "a pod has its own terminationGracePeriodSeconds to stop. Set it in the pod template")
	}
	if d.podSelector != "" {
		refuse("pod-selector", "\"kubectl maintenance start --plan=FILE\" sets the order of pods by label, and keeps those of entries with \"behavior: Skip\"")
	}
	if len(refused) > 0 {
		return nil, errors.New(strings.Join(refused, "\n"))
	}
	note := func(flag string, set bool, what string) {
		if set {
			notes = append(notes, fmt.Sprintf("--%s is not needed: %s.", flag, what))
		}
	}
	note("delete-emptydir-data", d.deleteEmptyDirData, "pods with emptyDir volumes leave like all other pods, and their data is lost")
	note("force", d.force, "pods without a controller leave like all other pods and are not recreated; budgets still apply")
	note("skip-wait-for-delete-timeout", flags.Changed("skip-wait-for-delete-timeout"),
		"the drain waits for a pod that does not stop; kubectl maintenance blockers prints the reason")
	note("chunk-size", flags.Changed("chunk-size"), "the server lists the pods, not this command")
	return notes, nil
}
