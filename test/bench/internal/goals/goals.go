// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package goals compares measured values with their bounds and writes reports of measurements.
package goals

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Goal is a measured value and its upper bound.
type Goal struct {
	Text  string  `json:"text"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	Kept  bool    `json:"kept"`
}

// Judge returns the goals, and sets for each whether it is reached.
func Judge(all ...Goal) []Goal {
	for i := range all {
		all[i].Kept = all[i].Value <= all[i].Bound
	}
	return all
}

// Print adds the goals to a table of a tabwriter.
func Print(table io.Writer, all []Goal) {
	fmt.Fprintln(table, "\nGOAL\tMEASURED\tWANTED\tRESULT")
	for _, g := range all {
		result := "kept"
		if !g.Kept {
			result = "MISSED"
		}
		fmt.Fprintf(table, "%s\t%.2f\t<= %.4g\t%s\n", g.Text, g.Value, g.Bound, result)
	}
}

// WriteReport writes a report as JSON.
func WriteReport(file string, report any) error {
	content, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}
