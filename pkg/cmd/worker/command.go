// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package worker implements the command haulout-worker.
package worker

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/version"
	"haulout.dev/haulout/pkg/worker"
)

// clients are the clients of kube-apiserver and of Haulout's API behind it.
type clients struct {
	kube        kubernetes.Interface
	maintenance versioned.Interface
}

// NewCommand returns the command haulout-worker.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "haulout-worker",
		Short: "Work on nodes that a maintenance has taken out of service",
		Long: `haulout-worker works on nodes that a NodeMaintenance with a task, or a rollout,
has taken out of service. It touches no other node.`,
		Version:      version.Get(),
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	kubeconfig := cmd.PersistentFlags().String("kubeconfig", "", "Path of a kubeconfig file. If it is empty, the service account of the pod is used.")
	cmd.AddCommand(newRebootCommand(kubeconfig), newJobCommand(kubeconfig))
	return cmd
}

func newRebootCommand(kubeconfig *string) *cobra.Command {
	var node, root, file string
	cmd := newWorkerCommand(kubeconfig, "node-name", func(ctx context.Context, c clients) error {
		return runReboot(ctx, c, node, root, file)
	})
	cmd.Use = "reboot --node-name=NAME"
	cmd.Short = "Reboot the node of this process"
	cmd.Long = `Reboot the node on which this process runs when a maintenance with the worker class
reboot.maintenance.haulout.dev has taken it out of service. The command asks logind for
the reboot, over the system bus of the host, and reports Done when the node has booted.
Run it on each node, in a DaemonSet that tolerates all taints.`
	cmd.Flags().StringVar(&node, "node-name", "", "Name of the node on which this process runs. Required.")
	cmd.Flags().StringVar(&root, "host-root", "", "Directory with run/dbus of the host. If it is empty, the root directory is used.")
	cmd.Flags().StringVar(&file, "reboot-required-file", "",
		"Path of the file with which the operating system asks for a reboot, such as /var/run/reboot-required. "+
			"The node then has the condition RebootRequired: True while the file exists, False while it does not. If it is empty, no condition is set.")
	return cmd
}

func newJobCommand(kubeconfig *string) *cobra.Command {
	var namespace string
	cmd := newWorkerCommand(kubeconfig, "namespace", func(ctx context.Context, c clients) error { return runJobs(ctx, c, namespace) })
	cmd.Use = "job --namespace=NAME"
	cmd.Short = "Run Jobs on nodes"
	cmd.Long = `Run a Job on each node that a maintenance with a worker class
NAME.job.maintenance.haulout.dev has taken out of service, with the pod of the
PodTemplate NAME. If the Job completes, the work is Done. Run one replica.`
	cmd.Flags().StringVar(&namespace, "namespace", "", "Namespace of the PodTemplates and Jobs. Required.")
	return cmd
}

// newWorkerCommand returns a command that runs a worker until SIGTERM. The flag that it requires
// must not be empty either: the worker would work on all nodes, or in all namespaces.
func newWorkerCommand(kubeconfig *string, required string, run func(context.Context, clients) error) *cobra.Command {
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		if value, err := cmd.Flags().GetString(required); err != nil || value == "" {
			return fmt.Errorf("--%s is required and must not be empty", required)
		}
		c, err := newClients(*kubeconfig)
		if err != nil {
			return err
		}
		if err := logsapi.ValidateAndApply(logging, nil); err != nil {
			return err
		}
		defer logs.FlushLogs()
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		klog.FromContext(ctx).Info("Starting haulout-worker", "version", version.Get(), "goVersion", version.GoVersion())
		return run(ctx, c)
	}}
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}

func newClients(kubeconfig string) (clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return clients{}, fmt.Errorf("--kubeconfig=%q: %w", kubeconfig, err)
	}
	config.UserAgent = "haulout-worker/" + version.Get()
	// A rollout may work on hundreds of nodes at the same time.
	config.QPS, config.Burst = 50, 100
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return clients{}, err
	}
	maintenance, err := versioned.NewForConfig(config)
	return clients{kube, maintenance}, err
}

// runWorker runs a worker with a handler until the context ends.
func runWorker(ctx context.Context, config worker.Config) error {
	w, err := worker.New(config)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}
