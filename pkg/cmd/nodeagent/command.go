// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeagent implements the command haulout-node-agent.
package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/version"
)

// NewCommand returns the command haulout-node-agent.
func NewCommand() *cobra.Command {
	o := &Options{}
	cmd := &cobra.Command{
		Use:   "haulout-node-agent",
		Short: "Create a maintenance when a node shuts down",
		Long: `haulout-node-agent runs as a service of a node's operating system. When the
machine is about to shut down or reboot, the agent delays the shutdown, creates a
NodeMaintenance for the node, and continues the shutdown when the pods have left.
If Haulout does not answer, the agent evicts the pods itself, within their budgets.
If the API does not answer at all or the time is short, it ends the pods on the
node in the order of their priorities. It also stops and restarts static pods for
maintenances.`,
		Version:      version.Get(),
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.addFlags(cmd.PersistentFlags())
	s := platformServices(o)
	cmd.AddCommand(newRunCommand(o), newInstallCommand(o, s), newUninstallCommand(o, s), newStatusCommand(o), newStaticCommand(o), newConfigCommand(o),
		newShutdownCommand(o),
		newWaitCommand())
	return cmd
}

func newConfigCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration, or create one from the kubelet's",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Check the configuration file and print it with all defaults",
		Long: `Check the configuration file, with the flags that override it, and print the
configuration that the agent would use. An error names the field and the allowed
values. The command changes nothing and needs no running agent.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.Load()
			if err != nil {
				return err
			}
			data, err := yaml.Marshal(c)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	})
	cmd.AddCommand(newMigrateCommand(o))
	return cmd
}

// Options are the flags that select the configuration file and override its fields.
type Options struct {
	// ConfigFile is the path of the configuration file. If it is empty, the default path is used,
	// and the file may be missing.
	ConfigFile string
	// Kubeconfig, NodeName and StateDirectory override fields of the configuration unless empty.
	Kubeconfig, NodeName, StateDirectory string
}

func (o *Options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.ConfigFile, "config", o.ConfigFile, "Path of the configuration file. The default is "+config.DefaultPath()+
		"; if that file is missing, each field has its default.")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Overrides kubeconfig of the configuration file.")
	flags.StringVar(&o.NodeName, "node-name", o.NodeName, "Overrides nodeName of the configuration file.")
	flags.StringVar(&o.StateDirectory, "state-directory", o.StateDirectory, "Overrides stateDirectory of the configuration file.")
}

// Load returns the configuration: the file with defaults, overridden by the flags.
func (o *Options) Load() (*configv1alpha1.NodeAgentConfiguration, error) {
	c, err := config.Load(cmp.Or(o.ConfigFile, config.DefaultPath()))
	if o.ConfigFile == "" && errors.Is(err, fs.ErrNotExist) {
		c, err = config.Default(), nil
	}
	if err != nil {
		return nil, err
	}
	c.Kubeconfig, c.NodeName = cmp.Or(o.Kubeconfig, c.Kubeconfig), cmp.Or(o.NodeName, c.NodeName)
	c.StateDirectory = cmp.Or(o.StateDirectory, c.StateDirectory)
	if cmp.Or(o.Kubeconfig, o.NodeName, o.StateDirectory) != "" {
		if errs := config.Validate(c); len(errs) > 0 {
			return nil, fmt.Errorf("configuration with the flags --kubeconfig, --node-name and --state-directory: %w", errs.ToAggregate())
		}
	}
	return c, nil
}

func newRunCommand(o *Options) *cobra.Command {
	logging := logsapi.NewLoggingConfiguration()
	r := &runner{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Long: `Run the agent until it is stopped. The service that 'install' creates runs this
command, which needs the rights of the machine's administrator.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.start(cmd.Context(), o, func(ctx context.Context) error {
				if err := logsapi.ValidateAndApply(logging, nil); err != nil {
					return err
				}
				defer logs.FlushLogs()
				klog.FromContext(ctx).Info("Starting haulout-node-agent", "version", version.Get(), "goVersion", version.GoVersion())
				return r.run(ctx, o)
			})
		},
	}
	r.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}

// newWaitCommand returns the command of the container that keeps the pods of the installing
// DaemonSet running.
func newWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait",
		Short: "Do nothing until SIGTERM, in the pods of the DaemonSet that installs the agent",
		Long: `Do nothing until SIGTERM. A DaemonSet needs a running container, and its init
container, which installs the agent, has ended by then.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			<-ctx.Done()
			return nil
		},
	}
}

func newMigrateCommand(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Convert the kubelet's graceful shutdown to the agent's configuration",
		Long: `Print the part of the agent's configuration that corresponds to the fields
shutdownGracePeriod and shutdownGracePeriodCriticalPods, or
shutdownGracePeriodByPodPriority, of this machine's kubelet. The command does not
change the kubelet: remove its fields when the agent has the table, since with
both, the kubelet ends the pods immediately.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.Load()
			if err != nil {
				return err
			}
			facts, err := kubelet.Discover(cmd.Context(), c.KubeletConfig)
			if err != nil {
				return err
			}
			return printMigrated(cmd.OutOrStdout(), c, &facts)
		},
	}
}

// printMigrated prints the fields of the agent's configuration that replace the kubelet's fields.
func printMigrated(out io.Writer, c *configv1alpha1.NodeAgentConfiguration, facts *kubelet.Facts) error {
	if len(facts.ShutdownFields) == 0 {
		return errors.New("the kubelet has no graceful shutdown: shutdownGracePeriod and shutdownGracePeriodByPodPriority are not set")
	}
	var migrated struct {
		Table    []configv1alpha1.ShutdownGracePeriodByPodPriority `json:"shutdownGracePeriodByPodPriority"`
		MaxDelay *metav1.Duration                                  `json:"maxShutdownDelay,omitempty"`
	}
	total := int64(0)
	for priority, seconds := range facts.ShutdownTable {
		// The agent does not support an entry without any time, which ends its pods immediately.
		migrated.Table = append(migrated.Table, configv1alpha1.ShutdownGracePeriodByPodPriority{Priority: priority, ShutdownGracePeriodSeconds: max(seconds, 1)})
		total += max(seconds, 1)
	}
	slices.SortFunc(migrated.Table, func(a, b configv1alpha1.ShutdownGracePeriodByPodPriority) int {
		return cmp.Compare(a.Priority, b.Priority)
	})
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

func withinDirectory(c *configv1alpha1.NodeAgentConfiguration) string {
	if state.RunDirectory != "" {
		return state.RunDirectory
	}
	return c.StateDirectory
}

// readWithin returns the last request to shorten a shutdown, nil if there is none.
func readWithin(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration) *state.Within {
	w, err := state.ReadWithin(withinDirectory(c))
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the request to shorten a shutdown", "err", err)
	}
	return w
}

func newShutdownCommand(o *Options) *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "shutdown --within=DURATION",
		Short: "Shorten the pending or the next shutdown",
		Long: `Shorten the pending shutdown, or the next one if it begins within five minutes:
the machine goes down DURATION from now. The command does not start a shutdown and
never lengthens one: maxShutdownDelay of the configuration still limits it. If less
than 5 minutes are left when the drain begins, pods of all priorities that users can
define leave at the same time, not in the order of the agent's table. Use the command
in programs that are notified before the machine is taken away, such as a handler of
spot notices, and that then shut it down:

  haulout-node-agent shutdown --within=120s && systemctl poweroff`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if within < time.Second || within > config.MaxDelay {
				return fmt.Errorf("--within must be from 1s to %.0fh", config.MaxDelay.Hours())
			}
			// An invalid configuration must not make the handler of a termination notice fail.
			c, err := o.Load()
			if err != nil && state.RunDirectory == "" {
				return err
			}
			bootID, err := state.BootID()
			if err != nil {
				return err
			}
			request := state.Within{BootID: bootID, SinceBoot: state.SinceBoot(), Within: within}
			dir := withinDirectory(c)
			if old, err := state.ReadWithin(dir); err == nil && shutdown.IsSooner(old, &request) {
				request = *old
			} else if err := state.WriteWithin(dir, request); err != nil {
				return err
			}
			left := request.SinceBoot + request.Within - state.SinceBoot()
			if c != nil {
				left = min(left, c.MaxShutdownDelay.Duration)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The pending shutdown, or one that begins in the next 5 minutes, has %s\n", left.Round(time.Second))
			return err
		},
	}
	cmd.Flags().DurationVar(&within, "within", within, "Time from now until the machine goes down, from 1s to 24h. Required.")
	return cmd
}
