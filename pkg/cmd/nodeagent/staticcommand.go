// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/agent/staticpods"
)

// newStaticCommand returns the commands about parked static pods. They work without the API and
// without a running agent: a parked pod may be the reason why either is missing.
func newStaticCommand(o *Options) *cobra.Command {
	dir := ""
	folder := func(cmd *cobra.Command) (string, error) {
		if dir != "" {
			return filepath.Abs(dir)
		}
		return staticPodFolder(cmd.Context(), o)
	}
	cmd := &cobra.Command{
		Use:   "static",
		Short: "List and restore parked static pods",
		Long: `A maintenance stops static pods by moving their manifests out of the kubelet's
folder; this is called parking. These commands list and restore parked static pods.
They need neither the API nor a running agent.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&dir, "static-pod-path", "",
		"Directory with the manifests of static pods. The default is the configured one, else that of the kubelet, "+
			"else the last one that the agent used.")
	cmd.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the parked static pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := folder(cmd)
			if err != nil {
				return err
			}
			entries, err := staticpods.List(dir)
			if err != nil {
				return err
			}
			return printParked(cmd.OutOrStdout(), dir, entries)
		},
	}, newStaticRestoreCommand(folder))
	return cmd
}

func newStaticRestoreCommand(folder func(*cobra.Command) (string, error)) *cobra.Command {
	all, foreign := false, false
	cmd := &cobra.Command{
		Use:   "restore {--all | --foreign | NAME...}",
		Short: "Restore parked static pods",
		Long: `Move manifests back into the kubelet's folder, so that the kubelet runs their pods
again. NAME is the name of a pod, NAMESPACE/NAME, or the name of the file.

A running agent parks a pod again if a NodeMaintenance in stage Drain still
requests it: complete that maintenance, or stop the agent first.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			ways := 0
			for _, given := range []bool{all, foreign, len(names) > 0} {
				if given {
					ways++
				}
			}
			if ways != 1 {
				return errors.New("use exactly one of: names of static pods, --all, --foreign")
			}
			dir, err := folder(cmd)
			if err != nil {
				return err
			}
			var restored []staticpods.Restored
			switch {
			case all:
				restored, err = staticpods.RestoreAll(dir)
			case foreign:
				restored, err = staticpods.RestoreForeign(dir)
			default:
				restored, err = staticpods.Restore(dir, names)
			}
			// The list may be non-empty even with an error.
			return errors.Join(printRestored(cmd.OutOrStdout(), restored), err)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Restore all parked static pods.")
	cmd.Flags().BoolVar(&foreign, "foreign", false, "Restore the manifests that were parked while the machine was in another cluster.")
	return cmd
}

// staticPodFolder returns the configured folder or, without one, the kubelet's folder. If neither
// can be read, it returns the folder that the agent used last.
func staticPodFolder(ctx context.Context, o *Options) (string, error) {
	dir, err := configuredFolder(ctx, o)
	if err == nil {
		return dir, nil
	}
	last, lastErr := o.lastFolder(ctx)
	if last == "" {
		return "", errors.Join(err, lastErr)
	}
	return last, nil
}

func configuredFolder(ctx context.Context, o *Options) (string, error) {
	c, err := o.Load()
	if err != nil {
		return "", err
	}
	if c.StaticPodPath != "" {
		return c.StaticPodPath, nil
	}
	facts, err := kubelet.Discover(ctx, c.KubeletConfig)
	if err != nil {
		return "", fmt.Errorf("find the kubelet's folder of static pods (--static-pod-path sets it): %w", err)
	}
	if facts.StaticPodPath == "" {
		return "", errors.New("the kubelet has no folder of static pods: set --static-pod-path to use a different one")
	}
	return facts.StaticPodPath, nil
}

// lastFolder returns the folder of static pods that the agent used last, even in an earlier boot;
// empty if no agent has found a folder. It works without a usable configuration.
func (o *Options) lastFolder(ctx context.Context) (string, error) {
	last, err := state.Read(o.stateDirectory(ctx), state.RunDirectory)
	if err != nil || last.Configuration == nil {
		return "", err
	}
	return last.Configuration.StaticPodPath, nil
}

// stateDirectory returns the folder with the state of the agent, also if its configuration cannot
// be loaded.
func (o *Options) stateDirectory(ctx context.Context) string {
	if c, err := o.Load(); err == nil {
		return c.StateDirectory
	}
	return cmp.Or(o.StateDirectory, lastStateDirectory(ctx), config.Default().StateDirectory)
}

func printParked(out io.Writer, dir string, entries []staticpods.Entry) error {
	if len(entries) == 0 {
		_, err := fmt.Fprintf(out, "No static pods of %s are parked.\n", dir)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAMESPACE\tNAME\tMANIFEST\tPARKED AT\tSTOPPED\tMAINTENANCES") // Flush returns the error
	for i := range entries {
		e := &entries[i]
		var names []string
		for _, m := range e.Maintenances {
			names = append(names, cmp.Or(m.Name, string(m.UID)))
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%t\t%s\n",
			cmp.Or(e.Namespace, "-"), cmp.Or(e.Name, "-"), e.Origin, e.ParkedAt.Format(time.RFC3339), e.Stopped, cmp.Or(strings.Join(names, ","), "-"))
	}
	return w.Flush()
}

func printRestored(out io.Writer, restored []staticpods.Restored) error {
	if len(restored) == 0 {
		_, err := fmt.Fprintln(out, "Nothing was restored.")
		return err
	}
	var errs []error
	for i := range restored {
		r := &restored[i]
		var err error
		if r.Archived != "" {
			_, err = fmt.Fprintf(out, "%s was not replaced, because it has a newer manifest; the parked manifest is now %s\n", r.Origin, r.Archived)
		} else {
			_, err = fmt.Fprintf(out, "%s restored\n", r.Origin)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
