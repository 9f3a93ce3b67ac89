// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/internal/authority"
)

// volumeSize is that of the volume which the embedded etcd has for itself. It preallocates files
// of 64 MB.
const volumeSize = "400m"

// volume is a file system of its own.
type volume struct{ path string }

// newVolume mounts a file system in a mount namespace of its own, which ends with the test. If the
// machine refuses that, it returns nil, except in CI.
func newVolume(t *testing.T) *volume {
	t.Helper()
	folder := t.TempDir()
	holder := exec.Command("unshare", "--mount", "--propagation=private", "sh", "-c", //nolint:gosec // the folder is ours
		fmt.Sprintf("mount -t tmpfs -o size=%s haulout-faults '%s' && echo mounted && exec sleep infinity", volumeSize, folder))
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	holder.Stderr = os.Stderr
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("mount a volume: got %q, %v", line, err)
		}
		t.Log("THIS MACHINE REFUSES TO MOUNT A VOLUME: the disk does not become full in this run")
		return nil
	}
	// Through this path others reach the volume in its namespace.
	return &volume{path: filepath.Join(fmt.Sprintf("/proc/%d/root", holder.Process.Pid), folder)}
}

// fill leaves no byte free until the returned function is called.
func (v *volume) fill() (empty func() error, err error) {
	name := filepath.Join(v.path, "ballast")
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = file.Write(block)
	}
	return func() error { return os.Remove(name) }, nil
}

// members is the size of an etcd cluster.
const members = 3

// etcdCluster is an etcd cluster of three processes.
type etcdCluster struct {
	t     *testing.T
	path  string
	args  [members][]string
	urls  [members]string
	run   [members]*exec.Cmd
	links [members]*link
	// certificates are those of its clients, and of the members; nil if it accepts all clients.
	certificates *certificates
}

// certificates are files that a client of etcd and its members have.
type certificates struct{ ca, cert, key string }

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	folder := t.TempDir()
	c := &certificates{ca: filepath.Join(folder, "ca.crt"), cert: filepath.Join(folder, "tls.crt"), key: filepath.Join(folder, "tls.key")}
	issuer := authority.New(t)
	cert, key := issuer.Issue(t, "etcd", []net.IP{net.IPv4(127, 0, 0, 1)})
	for path, content := range map[string][]byte{c.ca: issuer.PEM, c.cert: cert, c.key: key} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// flags are those of a client of etcd.
func (c *certificates) flags() []string {
	return []string{"--etcd-cafile=" + c.ca, "--etcd-certfile=" + c.cert, "--etcd-keyfile=" + c.key}
}

// newEtcdCluster starts the members, which accept only clients with the certificates unless these
// are nil. Clients reach each of them through a link.
func newEtcdCluster(t *testing.T, root string, certs *certificates) *etcdCluster {
	t.Helper()
	e := &etcdCluster{t: t, path: filepath.Join(root, "bin", "etcd"), certificates: certs}
	var peers []string
	var peerURLs [members]string
	for i := range members {
		e.urls[i], peerURLs[i] = e.scheme()+freeAddress(t), e.scheme()+freeAddress(t)
		peers = append(peers, fmt.Sprintf("member-%d=%s", i, peerURLs[i]))
	}
	folder := t.TempDir()
	for i := range members {
		name := fmt.Sprintf("member-%d", i)
		e.args[i] = []string{
			"--name=" + name, "--data-dir=" + filepath.Join(folder, name), "--log-level=error",
			"--listen-client-urls=" + e.urls[i], "--advertise-client-urls=" + e.urls[i],
			"--listen-peer-urls=" + peerURLs[i], "--initial-advertise-peer-urls=" + peerURLs[i],
			"--initial-cluster=" + strings.Join(peers, ","),
		}
		if certs != nil {
			e.args[i] = append(e.args[i],
				"--client-cert-auth", "--trusted-ca-file="+certs.ca, "--cert-file="+certs.cert, "--key-file="+certs.key,
				"--peer-client-cert-auth", "--peer-trusted-ca-file="+certs.ca, "--peer-cert-file="+certs.cert, "--peer-key-file="+certs.key)
		}
		e.start(i)
		e.links[i] = newLink(t, "the link to etcd "+name, "127.0.0.1:0", strings.TrimPrefix(e.urls[i], e.scheme()))
	}
	t.Cleanup(func() {
		for i := range members {
			e.kill(i)
		}
	})
	framework.Eventually(t, "etcd has a leader", func(ctx context.Context) (bool, error) {
		_, err := e.leader(ctx)
		return err == nil, err
	})
	return e
}

func (e *etcdCluster) scheme() string {
	if e.certificates != nil {
		return "https://"
	}
	return "http://"
}

// client returns a client of all members.
func (e *etcdCluster) client() (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: e.urls[:], DialTimeout: 5 * time.Second}
	if c := e.certificates; c != nil {
		info := transport.TLSInfo{TrustedCAFile: c.ca, CertFile: c.cert, KeyFile: c.key}
		var err error
		if config.TLS, err = info.ClientConfig(); err != nil {
			return nil, err
		}
	}
	return clientv3.New(config)
}

// freeAddress returns an address of the loopback interface without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (e *etcdCluster) start(member int) {
	e.t.Helper()
	e.run[member] = exec.Command(e.path, e.args[member]...) //nolint:gosec // the program is that of the build
	e.run[member].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.run[member].Start(); err != nil {
		e.t.Error(err)
	}
}

func (e *etcdCluster) kill(member int) {
	_ = e.run[member].Process.Kill()
	_ = e.run[member].Wait()
}

// servers are the URLs of the links to the members.
func (e *etcdCluster) servers() string {
	var urls []string
	for _, l := range e.links {
		urls = append(urls, e.scheme()+l.address())
	}
	return strings.Join(urls, ",")
}

// leader returns the index of the member that leads.
func (e *etcdCluster) leader(ctx context.Context) (int, error) {
	client, err := e.client()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for i, url := range e.urls {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		status, err := client.Status(ctx, url)
		cancel()
		if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no member of etcd says that it leads")
}

// leaderOrAny is the leader, or any member if there is no leader.
func (e *etcdCluster) leaderOrAny(ctx context.Context, random *rand.Rand) int {
	member := random.IntN(members)
	if leader, err := e.leader(ctx); err == nil {
		return leader
	}
	return member
}
