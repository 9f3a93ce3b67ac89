// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestSettings writes the configuration files of a node and parses them.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	given := Config{
		Index: 2, Dir: dir, Programs: "/programs", Runc: "/usr/sbin/runc", Snapshotter: "native", Cgroup: "haulout/real-2",
		CA: "/pki/ca.crt", ProxyKubeconfig: "/pki/kube-proxy.kubeconfig",
	}
	if err := given.Save(path); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.writeSettings(); err != nil {
		t.Fatal(err)
	}
	var kubelet, proxy, cni map[string]any
	for name, into := range map[string]*map[string]any{kubeletSettings: &kubelet, proxySettings: &proxy} {
		if err := yaml.UnmarshalStrict([]byte(read(t, dir, name)), into); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := json.Unmarshal([]byte(read(t, dir, cniSettings)), &cni); err != nil {
		t.Errorf("%s: %v", cniSettings, err)
	}
	if kubelet["cgroupRoot"] != "/haulout/real-2" || kubelet["address"] != "198.18.0.12" {
		t.Errorf("got settings of the kubelet %v", kubelet)
	}
	if proxy["hostnameOverride"] != "real-2" {
		t.Errorf("got settings of kube-proxy %v", proxy)
	}
	containerd := read(t, dir, containerdSettings)
	for _, want := range []string{`snapshotter = "native"`, `BinaryName = "/usr/sbin/runc"`, `bin_dirs = ["/programs"]`} {
		if !strings.Contains(containerd, want) {
			t.Errorf("the settings of containerd lack %s", want)
		}
	}
}

func TestNodeMustBePID1(t *testing.T) {
	if err := RunNode(t.Context(), Config{}); err == nil || !strings.Contains(err.Error(), "PID 1") {
		t.Errorf("got error %v, want an error about PID 1", err)
	}
}

// TestMachineLacksPrograms checks that one error names everything that is missing.
func TestMachineLacksPrograms(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	_, err := findMachine("/var/lib/cluster", empty)
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"runc in PATH", "nft in PATH", "CLUSTER_DIR outside /var/lib"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// TestChildren runs programs as PID 1 does.
func TestChildren(t *testing.T) {
	s := newChildren()
	go s.reap()
	log := filepath.Join(t.TempDir(), "log")
	shell := func(script string) program {
		return program{name: "sh", path: "/bin/sh", args: []string{"-c", script}, log: log}
	}
	if err := s.run(shell("echo hello")); err != nil {
		t.Error(err)
	}
	if err := s.run(shell("exit 3")); err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("got error %v, want status 3", err)
	}
	if content, err := os.ReadFile(log); string(content) != "hello\n" {
		t.Errorf("got log %q, error %v", content, err)
	}
	if err := s.run(program{name: "none", path: "/none", log: log}); err == nil || !strings.Contains(err.Error(), "start none") {
		t.Errorf("got error %v for a program that does not exist", err)
	}
}
