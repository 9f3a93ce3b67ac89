// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane specifies how to start etcd, the Kubernetes processes and kwok, and checks
// whether they are ready.
package controlplane

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"haulout.dev/haulout/test/cluster/internal/kubeconfig"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/pki"
	"haulout.dev/haulout/test/cluster/internal/process"
	"haulout.dev/haulout/test/cluster/internal/realnodes"
)

const (
	loopback = "127.0.0.1"
	// serviceRange is the range of addresses of Services. In a development cluster, these addresses
	// are not reachable.
	serviceRange = "10.96.0.0/16"
	firstService = "10.96.0.1"
	issuer       = "https://kubernetes.default.svc.cluster.local"
	// unlimited is a rate that clients on two cores cannot reach: with the default client limits of
	// the control plane, thousands of pods would take minutes.
	unlimited = "5000"
)

// WithPorts has the processes that listen on a port of the loopback interface.
var WithPorts = []string{layout.APIServer, layout.ControllerManager, layout.Scheduler, layout.Kwok, layout.Haulout}

// ControlPlane returns the specifications of the processes of one cluster.
type ControlPlane struct {
	Layout  layout.Layout
	Options options.Options
	Ports   map[string]int
}

// Server returns the URL of kube-apiserver.
func (c ControlPlane) Server() string {
	return "https://" + net.JoinHostPort(loopback, c.port(layout.APIServer))
}

func (c ControlPlane) port(name string) string { return strconv.Itoa(c.Ports[name]) }

// PrepareFiles writes keys, certificates, kubeconfigs, the audit policy and kwok's configuration.
func (c ControlPlane) PrepareFiles() error {
	dir := c.Layout.PKI()
	if err := pki.Ensure(dir, c.leaves()); err != nil {
		return err
	}
	if err := kubeconfig.WriteClient(c.Layout.AdminKubeconfig(), c.Server(), dir, pki.Admin); err != nil {
		return err
	}
	for _, name := range []string{layout.ControllerManager, layout.Scheduler, layout.Kwok} {
		path := c.Layout.ComponentKubeconfig(name)
		if err := kubeconfig.WriteClient(path, c.Server(), dir, clientCert(name)); err != nil {
			return err
		}
	}
	if err := kubeconfig.WriteFile(c.Layout.AuditPolicy(), []byte(auditPolicy)); err != nil {
		return err
	}
	if c.Options.Scheduler == options.SchedulerHaulout {
		if err := c.writeSchedulerConfig(); err != nil {
			return err
		}
	}
	return writeKwokConfig(c.Layout.KwokConfig(), c.Layout.KwokStages(), c.Options.PodStages)
}

// kubeletClient is the name of the certificate with which kube-apiserver connects to kubelets.
const kubeletClient = "kube-apiserver-kubelet-client"

func clientCert(name string) string  { return name + "-client" }
func servingCert(name string) string { return name + "-serving" }

func (c ControlPlane) leaves() []pki.Leaf {
	local := []net.IP{net.ParseIP(loopback)}
	apiServerNames := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}
	all := []pki.Leaf{
		{Name: pki.Admin, Signer: pki.CA, CommonName: "cluster-admin", Organization: []string{"system:masters"}},
		{Name: clientCert(layout.ControllerManager), Signer: pki.CA, CommonName: "system:kube-controller-manager"},
		{Name: clientCert(layout.Scheduler), Signer: pki.CA, CommonName: "system:kube-scheduler"},
		// kwok acts as all kubelets together, for which no default role exists. This group also
		// exempts kwok from priority and fairness, so that its thousands of status writes do not
		// delay the requests of a drain.
		{Name: clientCert(layout.Kwok), Signer: pki.CA, CommonName: "kwok", Organization: []string{"system:masters"}},
		{Name: pki.FrontProxyClient, Signer: pki.FrontProxyCA, CommonName: pki.FrontProxyClient},
		{
			Name:       servingCert(layout.APIServer),
			Signer:     pki.CA,
			CommonName: layout.APIServer,
			DNSNames:   apiServerNames,
			IPs:        append(local, net.ParseIP(firstService), net.ParseIP(realnodes.Gateway)),
		},
		{
			Name: kubeletClient, Signer: pki.CA, CommonName: kubeletClient, Organization: []string{"system:masters"},
		},
		{Name: servingCert(layout.ControllerManager), Signer: pki.CA, CommonName: layout.ControllerManager, IPs: local},
		{Name: servingCert(layout.Scheduler), Signer: pki.CA, CommonName: layout.Scheduler, IPs: local},
	}
	if c.Options.RealNodes > 0 {
		all = append(all, pki.Leaf{Name: "kube-proxy-client", Signer: pki.CA, CommonName: "system:kube-proxy"})
	}
	for index := 1; index <= c.Options.RealNodes; index++ {
		name := realnodes.Name(index)
		all = append(all, pki.Leaf{
			Name: clientCert(name), Signer: pki.CA, CommonName: "system:node:" + name, Organization: []string{"system:nodes"},
		})
	}
	return all
}

func (c ControlPlane) spec(name string, args []string) process.Spec {
	return process.Spec{
		Name: name,
		Path: c.program(name),
		Args: args,
		Env:  garbageSettings(name),
		Dir:  c.Layout.Dir,
		Log:  c.Layout.Log(name),
	}
}

// program returns the path of a program. That of etcd and of kwok does not depend on the version of
// Kubernetes.
func (c ControlPlane) program(name string) string {
	if name == layout.Etcd || name == layout.Kwok {
		return c.Layout.Binary(name)
	}
	return filepath.Join(c.Layout.KubeBin(c.Options.Kube), name)
}

// Etcd returns how to start etcd.
func (c ControlPlane) Etcd() process.Spec {
	return c.spec(layout.Etcd, append([]string{
		"--name=etcd",
		"--data-dir=" + c.Layout.EtcdData(),
		"--listen-client-urls=unix://" + layout.EtcdClientSocket,
		"--advertise-client-urls=unix://" + layout.EtcdClientSocket,
		"--listen-peer-urls=unix://" + layout.EtcdPeerSocket,
		"--initial-advertise-peer-urls=unix://" + layout.EtcdPeerSocket,
		"--initial-cluster=etcd=unix://" + layout.EtcdPeerSocket,
		"--log-level=warn",
		"--log-outputs=stderr",
		"--quota-backend-bytes=" + strconv.Itoa(8<<30),
		// After a crash of the process, no data is lost without fsync. After a crash of the
		// machine, a development cluster can be recreated. The flag halves the time of a start on
		// slow disks.
		"--unsafe-no-fsync=true",
	}, c.Options.EtcdFlags...))
}

// APIServer returns how to start kube-apiserver.
func (c ControlPlane) APIServer() process.Spec {
	dir := c.Layout.PKI()
	args := []string{
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		"--secure-port=" + c.port(layout.APIServer),
		// A loopback address cannot be an endpoint of the Service `kubernetes`; without this flag
		// kube-apiserver does not start.
		"--endpoint-reconciler-type=none",
		"--etcd-servers=unix://" + layout.EtcdClientSocket,
		"--tls-cert-file=" + pki.CertFile(dir, servingCert(layout.APIServer)),
		"--tls-private-key-file=" + pki.KeyFile(dir, servingCert(layout.APIServer)),
		"--client-ca-file=" + pki.CertFile(dir, pki.CA),
		"--service-cluster-ip-range=" + serviceRange,
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + pki.PublicKeyFile(dir, pki.ServiceAccounts),
		"--service-account-signing-key-file=" + pki.KeyFile(dir, pki.ServiceAccounts),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		// Without this flag, the watches of the other processes delay a restart until their
		// connections time out.
		"--shutdown-watch-termination-grace-period=2s",
		"--requestheader-client-ca-file=" + pki.CertFile(dir, pki.FrontProxyCA),
		"--requestheader-allowed-names=" + pki.FrontProxyClient,
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pki.CertFile(dir, pki.FrontProxyClient),
		"--proxy-client-key-file=" + pki.KeyFile(dir, pki.FrontProxyClient),
	}
	if c.Options.RealNodes > 0 {
		args = append(args,
			"--egress-selector-config-file="+c.Layout.EgressSelector(),
			// kube-apiserver must connect to pods directly: the addresses of Services exist only on
			// the nodes.
			"--enable-aggregator-routing=true",
			"--kubelet-client-certificate="+pki.CertFile(dir, kubeletClient),
			"--kubelet-client-key="+pki.KeyFile(dir, kubeletClient),
			"--kubelet-preferred-address-types=InternalIP",
		)
	}
	if c.Options.Audit {
		args = append(args, c.auditFlags()...)
	}
	return c.spec(layout.APIServer, append(c.withFeatureGates(args), c.Options.APIServerFlags...))
}

// ControllerManager returns how to start kube-controller-manager, with all default controllers.
func (c ControlPlane) ControllerManager() process.Spec {
	dir := c.Layout.PKI()
	args := append(c.componentFlags(layout.ControllerManager),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+pki.KeyFile(dir, pki.ServiceAccounts),
		"--root-ca-file="+pki.CertFile(dir, pki.CA),
		"--cluster-signing-cert-file="+pki.CertFile(dir, pki.CA),
		"--cluster-signing-key-file="+pki.KeyFile(dir, pki.CA),
		"--allocate-node-cidrs=false",
		"--concurrent-replicaset-syncs=20",
		"--concurrent-deployment-syncs=20",
		"--concurrent-statefulset-syncs=20",
		"--concurrent-namespace-syncs=20",
	)
	return c.spec(layout.ControllerManager, append(c.withFeatureGates(args), c.Options.ControllerManagerFlags...))
}

// Scheduler returns how to start kube-scheduler, or haulout-scheduler in its place.
func (c ControlPlane) Scheduler() process.Spec {
	args := c.withFeatureGates(c.componentFlags(layout.Scheduler))
	spec := c.spec(layout.Scheduler, args)
	if c.Options.Scheduler == options.SchedulerHaulout {
		spec.Path = c.Layout.Binary(layout.HauloutScheduler)
		spec.Args = append(spec.Args, "--config="+c.Layout.SchedulerConfig())
	}
	spec.Args = append(spec.Args, c.Options.SchedulerFlags...)
	return spec
}

// componentFlags returns the flags that kube-controller-manager and kube-scheduler share.
func (c ControlPlane) componentFlags(name string) []string {
	dir := c.Layout.PKI()
	config := c.Layout.ComponentKubeconfig(name)
	return []string{
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--client-ca-file=" + pki.CertFile(dir, pki.CA),
		"--requestheader-client-ca-file=" + pki.CertFile(dir, pki.FrontProxyCA),
		"--bind-address=" + loopback,
		"--secure-port=" + c.port(name),
		"--tls-cert-file=" + pki.CertFile(dir, servingCert(name)),
		"--tls-private-key-file=" + pki.KeyFile(dir, servingCert(name)),
		// Only one process of each kind runs. With leader election, a restarted process would wait
		// for the lease of the former one.
		"--leader-elect=false",
		"--kube-api-qps=" + unlimited,
		"--kube-api-burst=" + unlimited,
	}
}

// Kwok returns how to start kwok.
func (c ControlPlane) Kwok() process.Spec {
	spec := c.spec(layout.Kwok, []string{
		"--config=" + c.Layout.KwokConfig(),
		"--kubeconfig=" + c.Layout.ComponentKubeconfig(layout.Kwok),
		// Nodes without the annotation were created by tests, which manage them.
		"--manage-all-nodes=false",
		fmt.Sprintf("--manage-nodes-with-annotation-selector=%s=%s", NodeAnnotation, NodeAnnotationValue),
		"--node-lease-duration-seconds=40",
		// With a lower level, kwok writes several lines for every pod and every lease, as long as
		// the cluster runs.
		"--v=WARN",
		"--server-address=" + net.JoinHostPort(loopback, c.port(layout.Kwok)),
	})
	spec.Env = append(spec.Env, "KWOK_WORKDIR="+c.Layout.KwokHome(), "HAULOUT_POD_STAGES="+c.Options.PodStages)
	return spec
}

func (c ControlPlane) withFeatureGates(args []string) []string {
	if c.Options.FeatureGates == "" {
		return args
	}
	return append(args, "--feature-gates="+c.Options.FeatureGates)
}

// stageFolders returns the stage folders of kwok, relative to KwokStages.
func stageFolders(podStages string) []string {
	return []string{
		filepath.Join("node", "fast"),
		filepath.Join("node", "heartbeat-with-lease"),
		filepath.Join("pod", podStages),
	}
}
