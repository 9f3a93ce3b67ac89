// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dialTimeout is the timeout of a connection to a node, a pod or the machine.
const dialTimeout = 10 * time.Second

// Forward is a forwarding of connections from a port at the gateway to a port of the machine's
// loopback interface.
type Forward struct{ Listen, To string }

// ParseForward parses the form LISTEN=TO.
func ParseForward(text string) (Forward, error) {
	listen, to, found := strings.Cut(text, "=")
	if !found {
		return Forward{}, fmt.Errorf("must have the form ADDRESS:PORT=ADDRESS:PORT, %q has not", text)
	}
	for _, address := range []string{listen, to} {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return Forward{}, fmt.Errorf("must have the form ADDRESS:PORT=ADDRESS:PORT: %w", err)
		}
	}
	return Forward{Listen: listen, To: to}, nil
}

// RunNetwork runs the process `network` until the context ends. A process in the network of the
// machine must have started it in a new network namespace. It serves an HTTP CONNECT proxy at a
// unix socket.
func RunNetwork(ctx context.Context, socket string, forwards []Forward) error {
	// The parent is still running: it ends only after this process has started.
	machine, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getppid()))
	if err != nil {
		return fmt.Errorf("network of the machine: %w", err)
	}
	if err := setUpBridge(); err != nil {
		return err
	}
	dialMachine := dialerIn(machine)
	for _, f := range forwards {
		listener, err := net.Listen("tcp", f.Listen)
		if err != nil {
			return err
		}
		go forward(listener, func() (net.Conn, error) { return dialMachine(f.To) })
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: proxy(dialMachine), ReadHeaderTimeout: dialTimeout}
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func setUpBridge() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = bridge
	br := &netlink.Bridge{LinkAttrs: attributes}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("create interface %s: %w", bridge, err)
	}
	address, err := netlink.ParseAddr(Gateway + "/24")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.AddrAdd(br, address), netlink.LinkSetUp(br)); err != nil {
		return fmt.Errorf("interface %s: %w", bridge, err)
	}
	for index := 1; index <= Max; index++ {
		if err := routeToPods(br, index); err != nil {
			return err
		}
	}
	return nil
}

// routeToPods adds the route to the pods of a node.
func routeToPods(over netlink.Link, index int) error {
	_, pods, err := net.ParseCIDR(PodRange(index))
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: over.Attrs().Index, Dst: pods, Gw: net.ParseIP(Address(index))}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("route to the pods of %s: %w", Name(index), err)
	}
	return nil
}

// dialerIn returns a function that connects from another network namespace. It starts one goroutine
// whose thread enters that namespace and creates the sockets.
func dialerIn(namespace *os.File) func(address string) (net.Conn, error) {
	type result struct {
		connection net.Conn
		err        error
	}
	type request struct {
		address string
		answer  chan result
	}
	requests := make(chan request)
	go func() {
		// Never unlock the thread: no other goroutine may run on it.
		runtime.LockOSThread()
		entered := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		for r := range requests {
			if entered != nil {
				r.answer <- result{err: fmt.Errorf("enter the network of the machine: %w", entered)}
				continue
			}
			// This does not block for long, because it connects to a loopback address.
			connection, err := net.DialTimeout("tcp", r.address, dialTimeout)
			r.answer <- result{connection, err}
		}
	}()
	return func(address string) (net.Conn, error) {
		answer := make(chan result, 1)
		requests <- request{address, answer}
		r := <-answer
		return r.connection, r.err
	}
}

func forward(listener net.Listener, dial func() (net.Conn, error)) {
	for {
		from, err := listener.Accept()
		if err != nil {
			log.Printf("Forwarding from %s ended: %v", listener.Addr(), err)
			return
		}
		go func() {
			to, err := dial()
			if err != nil {
				log.Printf("A connection to %s was refused: %v", listener.Addr(), err)
				from.Close()
				return
			}
			join(from, to)
		}()
	}
}

// proxy handles CONNECT requests. It dials loopback addresses on the machine, and all other
// addresses, which are addresses of nodes and pods, in this namespace.
func proxy(dialMachine func(address string) (net.Conn, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "only CONNECT is supported", http.StatusMethodNotAllowed)
			return
		}
		dial := func(address string) (net.Conn, error) { return net.DialTimeout("tcp", address, dialTimeout) }
		if host, _, err := net.SplitHostPort(r.Host); err == nil && isLoopback(host) {
			dial = dialMachine
		}
		to, err := dial(r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			to.Close()
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			to.Close()
			from.Close()
			return
		}
		join(from, to)
	})
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// join copies in both directions until both sides have ended.
func join(a, b net.Conn) {
	done := make(chan struct{})
	one := func(to, from net.Conn) {
		// If one direction fails, the copy in the other direction fails, too.
		_, _ = io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		done <- struct{}{}
	}
	go one(a, b)
	go one(b, a)
	<-done
	<-done
	a.Close()
	b.Close()
}

// Connect connects a node to the bridge. network and node are the PIDs of the processes.
func Connect(index, network, node int) error {
	link, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", network))
	if err != nil {
		return err
	}
	defer link.Close()
	result := make(chan error)
	go func() {
		// The goroutine never unlocks the thread, so the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(link.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- addPort(index, node)
	}()
	if err := <-result; err != nil {
		return fmt.Errorf("connect %s to the network: %w", Name(index), err)
	}
	return nil
}

func addPort(index, node int) error {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("veth%d", index)
	// The kernel removes the network interface of a node that has ended, but not immediately.
	if old, err := netlink.LinkByName(name); err == nil {
		_ = netlink.LinkDel(old)
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	attributes.MasterIndex = br.Attrs().Index
	port := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsPid(node)}
	if err := netlink.LinkAdd(port); err != nil {
		return err
	}
	return netlink.LinkSetUp(port)
}
