// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
)

// newMigrateCommand returns the command that prints the kubelet's shutdown as the agent's table.
func newMigrateCommand(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Print what the kubelet's own graceful shutdown means for the agent",
		Long: `Print the table that shutdownGracePeriod and shutdownGracePeriodCriticalPods, or
shutdownGracePeriodByPodPriority, of this machine's kubelet mean, as a part of the
agent's configuration. The kubelet is not changed: remove the fields there when
the agent has the table, since with both the kubelet ends the pods immediately.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.Load()
			if err != nil {
				return err
			}
			facts, err := kubelet.Discover(cmd.Context(), c.KubeletConfig, nil)
			if err != nil {
				return err
			}
			return printMigrated(cmd.OutOrStdout(), c, &facts)
		},
	}
}

// printMigrated prints the fields of the agent's configuration that take the place of the
// kubelet's.
func printMigrated(out io.Writer, c *v1alpha1.NodeAgentConfiguration, facts *kubelet.Facts) error {
	if len(facts.ShutdownFields) == 0 {
		return errors.New("the kubelet has no graceful shutdown of its own: shutdownGracePeriod and shutdownGracePeriodByPodPriority are not set")
	}
	var migrated struct {
		Table    []v1alpha1.ShutdownGracePeriodByPodPriority `json:"shutdownGracePeriodByPodPriority"`
		MaxDelay *metav1.Duration                            `json:"maxShutdownDelay,omitempty"`
	}
	total := int64(0)
	for priority, seconds := range facts.ShutdownTable {
		// An entry without time ends its pods without a wait, which the agent does not do.
		migrated.Table = append(migrated.Table, v1alpha1.ShutdownGracePeriodByPodPriority{Priority: priority, ShutdownGracePeriodSeconds: max(seconds, 1)})
		total += max(seconds, 1)
	}
	slices.SortFunc(migrated.Table, func(a, b v1alpha1.ShutdownGracePeriodByPodPriority) int { return cmp.Compare(a.Priority, b.Priority) })
	if least := time.Duration(total)*time.Second + config.Margin; c.MaxShutdownDelay.Duration < least {
		migrated.MaxDelay = &metav1.Duration{Duration: least}
	}
	data, err := yaml.Marshal(migrated)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}
