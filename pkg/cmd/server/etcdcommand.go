// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/component-base/term"

	"haulout.dev/haulout/pkg/cmd/server/embeddedetcd"
	"haulout.dev/haulout/pkg/files"
)

// stdio is the file name for the standard input or output.
const stdio = "-"

func newEtcdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Back up, restore and maintain the data of the embedded etcd",
		Long: `Back up, restore and maintain the data of the embedded etcd.

The commands need the data directory of the server, so in a cluster they run in
its container:

  kubectl exec -n haulout-system deploy/haulout-apiserver -- \
    /haulout-apiserver etcd snapshot - > haulout.snapshot`,
		Args: cobra.NoArgs,
	}
	// The help and usage functions of the parent command would print the flags of the server.
	plain := &cobra.Command{}
	cmd.SetHelpFunc(plain.HelpFunc())
	cmd.SetUsageFunc(plain.UsageFunc())
	o := &etcdOptions{dataDir: defaultDataDir}
	cmd.PersistentFlags().StringVar(&o.dataDir, "data-dir", o.dataDir, "The --data-dir of the server.")
	cmd.AddCommand(o.snapshotCommand(), o.statusCommand(), o.defragCommand(), o.restoreCommand(), o.copyCommand())
	return cmd
}

type etcdOptions struct {
	dataDir string
	json    bool
}

func (o *etcdOptions) addOutput(flags *pflag.FlagSet) {
	flags.BoolVar(&o.json, "json", false, "Print JSON.")
}

// print prints a value as JSON, or its names and values as a table.
func (o *etcdOptions) print(to io.Writer, value any, rows ...[2]any) error {
	if o.json {
		encoder := json.NewEncoder(to)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(table, "%v\t%v\n", row[0], row[1])
	}
	return table.Flush()
}

// connected calls a function with a connection to the running server.
func (o *etcdOptions) connected(ctx context.Context, f func(*embeddedetcd.Member) error) error {
	member, err := embeddedetcd.Connect(ctx, o.dataDir)
	if err != nil {
		return err
	}
	defer member.Close()
	return f(member)
}

func (o *etcdOptions) snapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "snapshot FILE",
		Short: "Write a snapshot of the running server to a new file, or to the standard output (-)",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.connected(cmd.Context(), func(m *embeddedetcd.Member) error {
				if args[0] != stdio {
					return snapshotToFile(cmd, m, args[0])
				}
				if _, _, err := term.TerminalSize(cmd.OutOrStdout()); err == nil {
					return errors.New("the standard output is a terminal: redirect it to a file")
				}
				return m.Snapshot(cmd.Context(), cmd.OutOrStdout())
			})
		},
	}
}

// snapshotToFile writes a snapshot to a new file and checks it. The file gets its name only when it
// is complete.
func snapshotToFile(cmd *cobra.Command, m *embeddedetcd.Member, name string) (err error) {
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("file %s already exists", name)
	}
	part, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".part-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(part.Name())) }()
	err = m.Snapshot(cmd.Context(), part)
	if err := errors.Join(err, part.Sync(), part.Close()); err != nil {
		return err
	}
	status, err := embeddedetcd.ReadSnapshot(part.Name())
	if err != nil {
		return err
	}
	if err := errors.Join(files.Rename(part.Name(), name), files.SyncFolder(filepath.Dir(name))); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Wrote %s: revision %d, %d objects and versions, %d bytes\n", name, status.Revision, status.TotalKey, status.TotalSize)
	return nil
}

func (o *etcdOptions) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [FILE]",
		Short: "Show size, quota and alarm of the running server, or check a snapshot",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				status, err := embeddedetcd.ReadSnapshot(args[0])
				if err != nil {
					return err
				}
				return o.print(cmd.OutOrStdout(), status, [2]any{"revision", status.Revision},
					[2]any{"objects and versions", status.TotalKey}, [2]any{"bytes", status.TotalSize}, [2]any{"hash", fmt.Sprintf("%08x", status.Hash)})
			}
			return o.connected(cmd.Context(), func(m *embeddedetcd.Member) error {
				status, err := m.Status(cmd.Context())
				if err != nil {
					return err
				}
				return o.print(cmd.OutOrStdout(), status, [2]any{"etcd", status.Version}, [2]any{"revision", status.Revision},
					[2]any{"objects", status.Objects}, [2]any{"database bytes", status.DatabaseBytes}, [2]any{"in use bytes", status.InUseBytes},
					[2]any{"quota bytes", status.QuotaBytes}, [2]any{"disk free bytes", status.DiskFreeBytes}, [2]any{"full", status.Full})
			})
		},
	}
	o.addOutput(cmd.Flags())
	return cmd
}

func (o *etcdOptions) defragCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "defrag",
		Short: "Return unused space to the volume, and accept writes again if the database was full",
		Long: `Remove old versions from the database of the running server and return their
space to the volume. Meanwhile the API does not answer: some seconds for each
GiB. If the database was full and is not any longer, it then accepts writes
again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.connected(cmd.Context(), func(m *embeddedetcd.Member) error {
				before, err := m.Status(cmd.Context())
				if err != nil {
					return err
				}
				if err := m.Defragment(cmd.Context()); err != nil {
					return err
				}
				after, err := m.Status(cmd.Context())
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "The database now has %d bytes; before it had %d\n", after.DatabaseBytes, before.DatabaseBytes)
				if before.Full && !after.Full {
					fmt.Fprintln(cmd.OutOrStdout(), "The database was full and accepts writes again")
				}
				return nil
			})
		},
	}
}

func (o *etcdOptions) restoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the data of a stopped server with the data of a snapshot, or of the standard input (-)",
		Long: `Replace the data of a stopped server with the data of a snapshot. The previous data are
kept in a folder beside the new data.

A snapshot is older than the cluster: maintenances that were completed since
would drain their nodes again. So the server starts without its controllers.
Complete or delete the maintenances that are over, then start the server with
--accept-restored-state.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := cmd.InOrStdin()
			if args[0] != stdio {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer file.Close()
				from = file
			}
			restored, err := embeddedetcd.Restore(from, o.dataDir, time.Now())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "Restored revision %d with %d objects and versions\n", restored.Revision, restored.TotalKey)
			if restored.Previous != "" {
				fmt.Fprintf(out, "The previous data is in %s; remove it when you no longer need it\n", restored.Previous)
			}
			fmt.Fprintln(out, "As long as its Lease exists, the server will not run its controllers until you start it with --accept-restored-state")
			return nil
		},
	}
}

func (o *etcdOptions) copyCommand() *cobra.Command {
	var to clientv3.Config
	var tls storagebackend.TransportConfig
	prefix := etcdPrefix
	cmd := &cobra.Command{
		Use:   "copy --etcd-servers=URL,...",
		Short: "Copy the data of a stopped server to an etcd cluster",
		Long: `Copy the data of a stopped server to an etcd cluster, so that the server can use
that cluster: with --etcd-servers and, at the first start, --accept-restored-state.
The copy has other revisions, so the server treats it like a restored backup.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(to.Endpoints) == 0 {
				return errors.New("--etcd-servers is required: the URLs of the etcd cluster, separated by commas")
			}
			var err error
			if to.TLS, err = tlsConfig(tls); err != nil {
				return err
			}
			options := embeddedetcd.Options{DataDir: o.dataDir, QuotaBytes: embeddedetcd.DefaultQuotaBytes}
			count, err := embeddedetcd.Copy(cmd.Context(), options, to, path.Join("/", prefix)+"/")
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Copied %d keys. Start the server with these --etcd-servers and, at the first start, --accept-restored-state\n", count)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&to.Endpoints, "etcd-servers", nil, "URLs of the members, separated by commas (required).")
	flags.StringVar(&tls.TrustedCAFile, "etcd-cafile", "", "File with the certificate authority of the members.")
	flags.StringVar(&tls.CertFile, "etcd-certfile", "", "File with the client certificate.")
	flags.StringVar(&tls.KeyFile, "etcd-keyfile", "", "File with the key of the client certificate.")
	flags.StringVar(&prefix, "etcd-prefix", prefix, "The --etcd-prefix of the server.")
	return cmd
}
