// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/record"

	"haulout.dev/haulout/pkg/agent/cluster"
	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/staticpods"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/version"
)

// conditionTimeout limits how long uninstall tries to write the condition of the node.
const conditionTimeout = 10 * time.Second

// installation describes the service of the agent.
type installation struct {
	// root is the directory where the root of the machine is mounted, or "".
	root string
	// binary is the path of the program on the machine, empty for the default.
	binary string
	// config is the configuration. content is the content of its file, and path is the path from
	// which the service reads the file. Without content, the file on the machine stays unchanged.
	config  *configv1alpha1.NodeAgentConfiguration
	content []byte
	path    string
	// args are the arguments of the program.
	args []string
}

// services installs and removes the service of the agent; platformServices has the real
// implementation.
type services struct {
	// root is set if the agent can be installed from a container that mounts the root of the
	// machine.
	root bool
	// note is appended to the help of the command install.
	note string
	// install installs or updates the service, and reports whether anything changed.
	install func(context.Context, *installation) (changed bool, err error)
	// pending reports whether the agent delays a pending shutdown.
	pending   func(context.Context) (bool, error)
	uninstall func(context.Context) error
}

func newInstallCommand(o *Options, s services) *cobra.Command {
	root, binary := "", ""
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install or update the agent as a service of this machine",
		Long: `Copy this program to the machine, create its service and start it. If the service
exists, it is updated, and restarted only if something changed. The file
that --config names is copied to ` + config.DefaultPath() + `; the
flags that override fields become arguments of the service.` + s.note,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := o.installation(root, binary)
			if err != nil {
				return err
			}
			changed, err := s.install(cmd.Context(), i)
			if err != nil {
				return err
			}
			result := "The service is installed and was up to date."
			if changed {
				result = "The service is installed and runs."
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), result)
			return err
		},
	}
	cmd.Flags().StringVar(&binary, "binary", binary, "Path of the program on the machine. Empty is the default of the operating system.")
	if s.root {
		cmd.Flags().StringVar(&root, "root", root, "Directory where the root of the machine is mounted, for an installation from a container.")
	}
	return cmd
}

// installation checks the configuration of the service and returns the description of the service.
func (o *Options) installation(root, binary string) (*installation, error) {
	i := &installation{root: root, binary: binary, path: config.DefaultPath()}
	load := *o
	if o.ConfigFile == "" {
		// Load the file that the service will read, if the machine has this file.
		load.ConfigFile = filepath.Join(root, i.path)
		if _, err := os.Stat(load.ConfigFile); errors.Is(err, fs.ErrNotExist) {
			load.ConfigFile = ""
		}
	}
	var err error
	if i.config, err = load.Load(); err != nil {
		return nil, err
	}
	if o.ConfigFile != "" {
		if i.content, err = os.ReadFile(o.ConfigFile); err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
	}
	i.args = []string{"run"}
	for _, flag := range []struct{ name, value string }{
		{"kubeconfig", o.Kubeconfig}, {"node-name", o.NodeName}, {"state-directory", o.StateDirectory},
	} {
		if flag.value != "" {
			i.args = append(i.args, "--"+flag.name+"="+flag.value)
		}
	}
	return i, nil
}

func newUninstallCommand(o *Options, s services) *cobra.Command {
	restore, force := false, false
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the agent from this machine",
		Long: `Stop the service and remove it, with its program and its settings of the operating
system. The configuration and the state stay. The command fails while the agent
delays a shutdown, and while static pods are parked: without an agent they would
stay stopped when their maintenance is completed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return uninstall(cmd, o, s, restore, force) },
	}
	cmd.Flags().BoolVar(&restore, "restore-static-pods", restore, "Restore the static pods that are parked.")
	cmd.Flags().BoolVar(&force, "force", force, "Uninstall even if the configuration or the state cannot be read, or the API or, on Linux, systemd-logind does not answer. "+
		"If the condition NodeAgentReady stays True, drains wait some minutes longer for the agent.")
	return cmd
}

func uninstall(cmd *cobra.Command, o *Options, s services, restore, force bool) error {
	c, err := o.Load()
	if err != nil {
		if !force {
			return fmt.Errorf("load the configuration (--force skips this): %w", err)
		}
		c = config.Default()
	}
	dir, parked, err := parkedOf(cmd.Context(), o, force)
	if err != nil {
		return err
	}
	if len(parked) > 0 && !restore {
		return fmt.Errorf("static pods are parked: %s; complete their NodeMaintenances first, or use --restore-static-pods", strings.Join(parked, ", "))
	}
	pending, err := s.pending(cmd.Context())
	if err != nil && !force {
		return fmt.Errorf("check whether the agent delays a shutdown (--force skips this): %w", err)
	}
	if pending {
		return errors.New("the agent delays a shutdown: cancel the shutdown, or wait until the machine has booted again")
	}
	if err := reportStopped(cmd.Context(), c); err != nil && !force {
		return fmt.Errorf("write the condition NodeAgentReady of the node (--force skips this): %w", err)
	}
	if err := s.uninstall(cmd.Context()); err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "The service is removed.")
	errs := []error{err}
	if restore {
		// Restore the manifests before the API request: the installed program, which could restore
		// them later, is already removed. The agent may have parked more manifests until it was
		// stopped.
		restored, err := staticpods.RestoreAll(dir)
		errs = append(errs, printRestored(cmd.OutOrStdout(), restored), err)
	} else if _, parked, _ = parkedOf(cmd.Context(), o, true); len(parked) > 0 {
		errs = append(errs, fmt.Errorf("the agent parked static pods before it stopped: %s; move their manifests back, see \"Undo everything by hand\" in docs/node-agent.md", strings.Join(parked, ", ")))
	}
	// Write the condition again: the agent wrote its own condition until it was stopped.
	if err := reportStopped(cmd.Context(), c); err != nil && !force {
		errs = append(errs, fmt.Errorf("the service is removed, but the condition NodeAgentReady of the node was not updated, so drains may wait for the agent for %s: %w", protocol.AgentSilence, err))
	}
	return errors.Join(errs...)
}

// parkedOf returns the folder of static pods and the parked manifests. If the kubelet's
// configuration cannot be read, it uses the folder that the agent used last. It returns none if no
// agent has found a folder on this machine or, with force, if the state cannot be read.
func parkedOf(ctx context.Context, o *Options, force bool) (string, []string, error) {
	dir, err := staticPodFolder(ctx, o)
	if err != nil {
		if _, err := o.lastFolder(ctx); err != nil && !force {
			return "", nil, fmt.Errorf("find parked static pods (--force skips this): %w", err)
		}
		return "", nil, nil
	}
	entries, err := staticpods.List(dir)
	if err != nil {
		return "", nil, err
	}
	return dir, originsOf(entries), nil
}

// reportStopped writes a node condition which reports that the node has no agent, so that drains
// keep its static pods.
func reportStopped(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration) error {
	ctx, cancel := context.WithTimeout(ctx, conditionTimeout)
	defer cancel()
	rest, node, err := clientOf(ctx, c)
	if err != nil {
		return err
	}
	client, err := cluster.New(cluster.Config{NodeName: node, REST: rest, Recorder: &record.FakeRecorder{}})
	if err != nil {
		return err
	}
	var errs []error
	for _, condition := range shutdown.StoppedConditions(version.Get()) {
		errs = append(errs, client.SetCondition(ctx, condition))
	}
	return errors.Join(errs...)
}
