/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	defaultNodes = 20
	// drainedNodes is how many of them are taken out of service.
	drainedNodes = 4
	// minNodes leaves enough nodes for the pods of those.
	minNodes = 2 * drainedNodes
	// defaultDir is not the folder of `make cluster-up`, so that the demo never comes in the way of
	// that.
	defaultDir = ".cluster-demo"
)

// settings are what the environment asks for.
type settings struct {
	// root is the folder of the repository; relative paths are shown and meant relative to it.
	root string
	// dir is the folder of the cluster; own says that it is the demo's, and not one that the user
	// has named.
	dir string
	own bool
	// nodes is the number of nodes.
	nodes int
	// keep leaves the cluster up.
	keep bool
}

// newSettings reads the settings. The program is expected in bin/ of the repository, where make
// puts it.
func newSettings(getenv func(string) string, executable func() (string, error)) (settings, error) {
	s := settings{dir: defaultDir, own: true, nodes: defaultNodes}
	self, err := executable()
	if err != nil {
		return settings{}, err
	}
	s.root = filepath.Dir(filepath.Dir(self))
	if dir := getenv("CLUSTER_DIR"); dir != "" {
		s.dir, s.own = filepath.Clean(dir), false
	}
	if value := getenv("NODES"); value != "" {
		if s.nodes, err = strconv.Atoi(value); err != nil || s.nodes < minNodes {
			return settings{}, fmt.Errorf("NODES=%q: must be a whole number of at least %d for the demo",
				value, minNodes)
		}
	}
	if value := getenv("KEEP"); value != "" {
		if s.keep, err = strconv.ParseBool(value); err != nil {
			return settings{}, fmt.Errorf("KEEP=%q: must be one of 1, true, 0, false", value)
		}
	}
	return s, nil
}

// path returns the absolute path of something that is named relative to the repository.
func (s settings) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(s.root, name)
}

func (s settings) kubeconfig() string { return filepath.Join(s.dir, "kubeconfig") }

// occupied reports whether there is a cluster in the folder.
func (s settings) occupied() (bool, error) {
	_, err := os.Stat(filepath.Join(s.path(s.dir), "state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// check refuses a folder of the user's in which there is a cluster already: the demo begins from
// nothing and would have to stop it.
func (s settings) check() error {
	occupied, err := s.occupied()
	if err != nil || s.own || !occupied {
		return err
	}
	return fmt.Errorf(
		"CLUSTER_DIR=%q: must not hold a cluster; leave CLUSTER_DIR out, or stop the cluster first with `make "+
			"cluster-down %s`",
		s.dir, s.makeArguments(),
	)
}

// makeArguments is what make must be given to find the cluster.
func (s settings) makeArguments() string { return "CLUSTER_DIR=" + quote(s.dir) }

// quote makes a word safe to be pasted into a shell.
func quote(word string) string {
	if word != "" &&
		strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,@+%") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
