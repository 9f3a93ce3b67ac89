// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/answer"
)

// nearest returns the candidate that a misspelled word most probably means: the one with the fewest
// different characters, at most a quarter of the word. It returns "" if no candidate is so similar,
// or several are equally similar, such as numbered nodes.
func nearest(word string, candidates []string) string {
	best, distance, several := "", max(1, len(word)/4)+1, false
	for _, candidate := range candidates {
		switch d := differences(word, candidate); {
		case d < distance:
			best, distance, several = candidate, d, false
		case d == distance:
			several = true
		}
	}
	if several {
		return ""
	}
	return best
}

// differences returns the number of characters to insert, delete or replace, or of neighbors to
// swap, to make one word from another (the optimal string alignment distance).
func differences(from, to string) int {
	a, b := []rune(from), []rune(to)
	// rows are the distances of the prefixes of a that end two and one characters before the
	// current one, and of the current one, to each prefix of b.
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// didYouMean returns the end of a sentence and a question, to append to an error; without a
// suggestion, it returns "".
func didYouMean(suggestion string) string {
	if suggestion == "" {
		return ""
	}
	return ". Did you mean " + suggestion + "?"
}

// suggestName returns the name of an existing maintenance or rollout if an error reports that one
// with a similar name does not exist.
func (e *environment) suggestName(ctx context.Context, err error) string {
	var status apierrors.APIStatus
	if !answer.ObjectGone(err) || !errors.As(err, &status) {
		return ""
	}
	details := status.Status().Details
	if details.Name == "" {
		return ""
	}
	c, err := e.connect()
	if err != nil {
		return ""
	}
	var list runtime.Object
	options := metav1.ListOptions{Limit: completionLimit}
	switch details.Kind {
	case "nodemaintenances":
		list, err = c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(ctx, options)
	case "nodemaintenancerollouts":
		list, err = c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().List(ctx, options)
	default:
		return ""
	}
	if err != nil {
		return ""
	}
	return nearest(details.Name, namesOf(list))
}
