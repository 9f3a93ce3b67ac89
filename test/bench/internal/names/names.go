// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package names defines flags that choose from a list of names.
package names

import (
	"flag"
	"fmt"
	"slices"
	"strings"
)

// Var defines a flag for the chosen names, separated by commas. Each must be one of all. The
// default is what is chosen already.
func Var(flags *flag.FlagSet, chosen *[]string, name string, all []string, usage string) {
	flags.Var(&value{chosen: chosen, all: all}, name, usage)
}

type value struct {
	chosen *[]string
	all    []string
}

// String returns the chosen names. The flag package calls it on a zero value as well.
func (v *value) String() string {
	if v.chosen == nil {
		return ""
	}
	return strings.Join(*v.chosen, ",")
}

// Set reads the value of the flag.
func (v *value) Set(text string) error {
	chosen := strings.Split(text, ",")
	for _, name := range chosen {
		if !slices.Contains(v.all, name) {
			return fmt.Errorf("%q must be one of %s", name, strings.Join(v.all, ", "))
		}
	}
	*v.chosen = chosen
	return nil
}
