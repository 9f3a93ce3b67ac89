// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"

	"haulout.dev/haulout/test/cluster/internal/process"
)

// NetworkNamespace is the new namespace of the process `network`.
const NetworkNamespace = unix.CLONE_NEWNET

// Namespaces are the new namespaces of the process of a node.
const Namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID

const (
	// linkTimeout is the timeout for the connection of a node to the bridge.
	linkTimeout = 30 * time.Second
	// containerdTimeout is the timeout for the start of containerd.
	containerdTimeout = time.Minute
	containerdSocket  = "/run/containerd/containerd.sock"
	volumesDir        = "/var/lib/volumes"
)

// RunNode is the process of a node, PID 1 in its namespaces. When the context ends, RunNode returns
// and the node ends.
func RunNode(ctx context.Context, c Config) error {
	if os.Getpid() != 1 {
		return errors.New("a node must be PID 1 of its own namespaces: use `cluster up --real-nodes`")
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"files", c.mount},
		{"network", func() error { return c.setUpNetwork(ctx) }},
		{"cgroup", func() error { return c.createCgroup(ctx) }},
		{"settings", c.writeSettings},
	} {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	children := newChildren()
	go children.reap()
	if err := children.keep(ctx, c.containerd()); err != nil {
		return err
	}
	if err := c.importImages(ctx, children); err != nil {
		return err
	}
	for _, p := range []program{c.kubelet(), c.kubeProxy()} {
		if err := children.keep(ctx, p); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// mount mounts the node's own /run, /var/lib and /var/log.
func (c Config) mount() error {
	if err := unix.Sethostname([]byte(c.Name())); err != nil {
		return err
	}
	// Make the mounts private first: the mounts of the node must not be visible on the machine.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, target := range []string{"/var/lib", "/var/log"} {
		source := c.file(filepath.Base(filepath.Dir(target)) + "-" + filepath.Base(target))
		if err := os.MkdirAll(source, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, folder := range []string{"/run/containerd", "/var/lib/kubelet/static-pods", heldDir, "/var/log/pods"} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := mountBootID(); err != nil {
		return err
	}
	for i := range c.Volumes {
		if err := os.MkdirAll(filepath.Join(volumesDir, strconv.Itoa(i+1)), 0o755); err != nil {
			return err
		}
	}
	// Containers must have access to the volumes that the kubelet mounts.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// bootIDFile contains an identifier that changes at each boot of a machine. The kernel's identifier
// is the same for all nodes, and does not change when a node is switched off and on.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// mountBootID mounts a new boot ID for the node.
func mountBootID() error {
	const file = "/run/boot_id"
	if err := os.WriteFile(file, []byte(string(uuid.NewUUID())+"\n"), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(file, bootIDFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", bootIDFile, err)
	}
	return nil
}

func (c Config) setUpNetwork(ctx context.Context) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	var eth0 netlink.Link
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, linkTimeout, true, func(context.Context) (bool, error) {
		eth0, err = netlink.LinkByName("eth0")
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for interface eth0: %w", err)
	}
	address, err := netlink.ParseAddr(c.Address() + "/24")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.AddrAdd(eth0, address), netlink.LinkSetUp(eth0)); err != nil {
		return fmt.Errorf("interface eth0: %w", err)
	}
	// The route is only for packets to Services: without a route, the kernel drops them before the
	// rules of kube-proxy replace their address.
	route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(Gateway)}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	for index := 1; index <= Max; index++ {
		if index == c.Index {
			continue
		}
		if err := routeToPods(eth0, index); err != nil {
			return err
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

// createCgroup creates the cgroup of the node. It first removes the cgroups of an earlier run,
// because cadvisor would spend seconds on each of their dead containers.
func (c Config) createCgroup(ctx context.Context) error {
	if err := RemoveCgroup(ctx, CgroupRoot, c.Cgroup); err != nil {
		return err
	}
	return createCgroup(CgroupRoot, c.Cgroup)
}

// program is a program that a node restarts whenever it ends.
type program struct {
	name string
	path string
	args []string
	env  []string
	log  string
}

func (c Config) program(name, path string, args ...string) program {
	return program{
		name: name,
		path: path,
		args: args,
		env:  []string{"PATH=" + c.Programs + ":" + c.Path, "HOME=/root"},
		log:  filepath.Join(c.Logs, c.Name()+"-"+name+".log"),
	}
}

func (c Config) containerd() program {
	return c.program("containerd", filepath.Join(c.Programs, "containerd"), "--config="+c.file(containerdSettings))
}

func (c Config) kubelet() program {
	return c.program("kubelet", filepath.Join(c.Binaries, "kubelet"),
		"--config="+c.file(kubeletSettings),
		"--kubeconfig="+c.KubeletKubeconfig,
		"--hostname-override="+c.Name(),
		"--node-ip="+c.Address(),
		"--node-labels="+Label+"="+LabelValue,
		"--v=2",
	)
}

func (c Config) kubeProxy() program {
	return c.program("kube-proxy", filepath.Join(c.Binaries, "kube-proxy"), "--config="+c.file(proxySettings))
}

// Label is a label of real nodes, for the node selectors of pods.
const (
	Label      = "haulout.dev/node"
	LabelValue = "real"
)

// importImages waits until containerd serves, and imports the images.
func (c Config) importImages(ctx context.Context, children *children) error {
	ctr := func(args ...string) error {
		p := c.program("ctr", filepath.Join(c.Programs, "ctr"), append([]string{"--address=" + containerdSocket}, args...)...)
		return children.run(p)
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, containerdTimeout, true, func(context.Context) (bool, error) {
		last = ctr("version")
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("containerd does not serve: %w", last)
	}
	for _, image := range c.Images {
		if err := ctr("--namespace=k8s.io", "images", "import", image); err != nil {
			return fmt.Errorf("import %s: %w", image, err)
		}
	}
	return nil
}

// restartPause is the time between the end of a program and its next start.
const restartPause = 500 * time.Millisecond

// A node has no service manager that could stop a program. Instead, a file in heldDir with the name
// of a program prevents its restart. A file in disabledDir has the same effect, and remains when
// the node is switched off and on.
const (
	heldDir     = "/run/held"
	disabledDir = "/var/lib/held"
)

func isHeld(p program) bool {
	_, held := os.Stat(filepath.Join(heldDir, p.name))
	_, disabled := os.Stat(filepath.Join(disabledDir, p.name))
	return held == nil || disabled == nil
}

// IsDisabled reports whether disabledDir of the node whose files are in dir has a file for the
// program.
func IsDisabled(dir, program string) bool {
	_, err := os.Stat(filepath.Join(dir, "var-lib", "held", program))
	return err == nil
}

// keep starts a program, and restarts it whenever it ends, unless a file prevents the restart.
func (s *children) keep(ctx context.Context, p program) error {
	var ended <-chan unix.WaitStatus
	var err error
	if !isHeld(p) {
		if ended, err = s.start(p); err != nil {
			return err
		}
	}
	go func() {
		for ctx.Err() == nil {
			if ended != nil {
				status := <-ended
				log.Printf("%s ended with status %d: %s", p.name, status.ExitStatus(), p.lastLine())
			}
			for {
				<-time.After(restartPause)
				if isHeld(p) {
					continue
				}
				if ended, err = s.start(p); err == nil {
					break
				}
				log.Print(err)
			}
		}
	}()
	return nil
}

// run runs a program and waits for its end.
func (s *children) run(p program) error {
	ended, err := s.start(p)
	if err != nil {
		return err
	}
	if status := <-ended; status.ExitStatus() != 0 {
		return fmt.Errorf("%s ended with status %d, see %s", p.name, status.ExitStatus(), p.log)
	}
	return nil
}

// lastLine returns the last line of the log of a program, which usually has the cause of its end.
func (p program) lastLine() string {
	tail, err := process.Tail(p.log, 0, 1)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(tail)
}

// command returns the command for a program, and its log file.
func (p program) command() (*exec.Cmd, *os.File, error) {
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	command := exec.Command(p.path, p.args...)
	command.Env = p.env
	command.Stdout, command.Stderr = out, out
	return command, out, nil
}
