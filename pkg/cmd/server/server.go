// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/klog/v2"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/cmd/server/embeddedetcd"
	"haulout.dev/haulout/pkg/cmd/server/servingcert"
	"haulout.dev/haulout/pkg/version"
)

// NewCommand returns the command haulout-apiserver.
func NewCommand() *cobra.Command {
	o := NewOptions()
	cmd := &cobra.Command{
		Use:   "haulout-apiserver",
		Short: "Take nodes out of service and return them to service",
		Long: `haulout-apiserver serves the API group maintenance.haulout.dev behind the
kube-apiserver of a cluster. Its controllers carry out the maintenances: they cordon
nodes, evacuate their pods in the planned order, and make the nodes schedulable
again.

Objects are stored in an etcd inside this process unless --etcd-servers is given.
The cluster's kube-apiserver authenticates and authorizes the users.

The commands below haulout-apiserver etcd maintain the data of that etcd: snapshot,
restore, status, defrag, copy.`,
		Version:      version.Get(),
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return compatibility.DefaultComponentGlobalsRegistry.Set()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(o.Logs, utilfeature.DefaultFeatureGate); err != nil {
				return err
			}
			completed := o.Complete()
			if err := completed.Validate(); err != nil {
				return err
			}
			cliflag.PrintFlags(cmd.Flags())
			return Run(genericapiserver.SetupSignalContext(), completed)
		},
	}
	sections := o.Flags()
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	global := sections.FlagSet("global")
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	global.AddFlag(cmd.Flags().Lookup("help"))
	global.AddFlag(cmd.Flags().Lookup("version"))
	cmd.AddCommand(newEtcdCommand())
	width, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sections, width)
	return cmd
}

// Run serves until the context ends and returns when all requests have finished, all controllers
// have stopped and the embedded etcd is closed.
func Run(ctx context.Context, o CompletedOptions) error {
	logger := klog.FromContext(ctx)
	logger.Info("Starting haulout-apiserver", "version", version.Get(), "goVersion", version.GoVersion(), "pid", os.Getpid())
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	host, err := o.Host.connect(ctx)
	if err != nil {
		return err
	}
	if o.Embedded {
		etcd, err := embeddedetcd.Start(ctx, embeddedetcd.Options{DataDir: o.Storage.DataDir, QuotaBytes: o.Storage.QuotaBytes})
		if err != nil {
			return err
		}
		// The server is the last client of etcd, so stop etcd after the server.
		defer etcd.Stop()
		go func() {
			select {
			case err := <-etcd.Err():
				cancel(fmt.Errorf("the embedded etcd failed: %w", err))
			case <-ctx.Done():
			}
		}()
		o.Etcd.StorageConfig.Transport.ServerList = []string{etcd.Endpoint()}
	}
	replica, err := o.openReplica(ctx, host)
	if err != nil {
		return err
	}
	defer replica.close()
	if o.SelfManagedCert {
		manager, err := o.Service.servingCert(ctx, host)
		if err != nil {
			return err
		}
		o.SecureServing.ServerCert.GeneratedCert = manager
	}
	config, err := o.config(ctx, host, replica)
	if err != nil {
		return err
	}
	completed, err := config.Complete()
	if err != nil {
		return err
	}
	server, err := completed.New()
	if err != nil {
		return err
	}
	if err := server.GenericAPIServer.PrepareRun().RunWithContext(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	logger.Info("Stopped")
	return nil
}

// servingCert returns a manager that has a certificate.
func (o *ServiceOptions) servingCert(ctx context.Context, host *hostCluster) (*servingcert.Manager, error) {
	agg, err := aggregator.NewForConfig(host.jsonConfig())
	if err != nil {
		return nil, err
	}
	options := servingcert.Options{Namespace: o.Namespace, Service: o.Name, APIService: apiServiceName}
	manager := servingcert.New(options, host.client, agg, clock.RealClock{})
	if err := manager.RunOnce(ctx); err != nil {
		if cert, _ := manager.CurrentCertKeyContent(); len(cert) == 0 {
			return nil, err
		}
		// Continue without the caBundle: the manager retries, and until then the aggregator does
		// not trust this server.
		klog.FromContext(ctx).Error(err, "Cannot set the caBundle for the serving certificate, will retry")
	}
	return manager, nil
}

// replica identifies this server among the replicas.
type replica struct {
	// identity is the holder identity in the Lease.
	identity string
	storage  *storage
	leases   coordinationclient.LeasesGetter
}

// openReplica opens the storage of this server. With embedded storage it fails if another server is
// active.
func (o CompletedOptions) openReplica(ctx context.Context, host *hostCluster) (*replica, error) {
	leases, err := host.leaseClient()
	if err != nil {
		return nil, err
	}
	client, err := dialStorage(o.Etcd.StorageConfig.Transport)
	if err != nil {
		return nil, fmt.Errorf("reach etcd: %w", err)
	}
	r := &replica{leases: leases}
	if r.storage, err = openStorage(ctx, client, o.Etcd.StorageConfig.Prefix); err != nil {
		_ = client.Close()
		return nil, err
	}
	r.identity = replicaIdentity()
	if o.Embedded {
		r.identity = embeddedIdentity(r.storage.id)
		if err := o.refuseSecondStorage(ctx, leases, r.identity); err != nil {
			r.close()
			return nil, err
		}
	}
	klog.FromContext(ctx).Info("Storage is open", "storageID", r.storage.id, "identity", r.identity,
		"adoptStorage", o.Controllers.AdoptStorage, "acceptRestoredState", o.Controllers.AcceptRestoredState)
	return r, nil
}

func (r *replica) close() { _ = r.storage.client.Close() }

// embeddedIdentity returns the identity of a server with embedded storage. A server that is killed
// and starts again on the same machine has the same identity, so that it gets its Lease back
// immediately. A server on a copy of the volume on another machine has a different identity.
func embeddedIdentity(storageID string) string {
	return fmt.Sprintf("%s_storage-%s", hostname(), storageID)
}

// replicaIdentity returns the identity of this process among the replicas that share an external
// storage.
func replicaIdentity() string {
	return fmt.Sprintf("%s_%d_%d", hostname(), os.Getpid(), time.Now().UnixNano())
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown-host"
	}
	return name
}
