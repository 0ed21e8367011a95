package trident.kept;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.net.URI;
import java.util.Base64;
import java.util.Collections;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.FileScanRDD;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq$;
import scala.reflect.ClassTag$;

/**
 * One Spark partition, whose rows each job names itself: in a local property of the job.
 *
 * <p>The property belongs to the job, cannot change, and goes to the executors with each task. So every task of an
 * attempt reads this attempt's rows: one that is tried again, runs twice, or runs on another executor too. Nothing is
 * shared between attempts.
 *
 * <p>The property holds an Arrow stream in base 64, or, where there is a scan, a JSON list of files, each
 * [path, size, time of modification in ms].
 */
final class SlotRDD extends RDD<InternalRow> {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final String property;
  private final FileScanRDD scan;
  private final boolean columnar;
  private final URI fileSystem;

  /**
   * @param scan reads the files as Spark does; null: the rows are in the property
   * @param columnar the scan gives batches of columns
   * @param fileSystem any path on the file system of the files
   */
  @SuppressWarnings({"unchecked", "rawtypes"})
  SlotRDD(SparkContext context, String property, FileScanRDD scan, boolean columnar, URI fileSystem) {
    super(
        context,
        (scala.collection.immutable.Seq) Seq$.MODULE$.empty(),
        ClassTag$.MODULE$.apply(InternalRow.class));
    this.property = property;
    this.scan = scan;
    this.columnar = columnar;
    this.fileSystem = fileSystem;
  }

  @Override
  public Partition[] getPartitions() {
    return new Partition[] {new Single()};
  }

  @Override
  public Iterator<InternalRow> compute(Partition split, TaskContext context) {
    String input = context.getLocalProperty(property);
    if (input == null) {
      throw new IllegalStateException("the job has no local property " + property + ", which names its rows");
    }
    if (scan == null) {
      byte[] stream = Base64.getDecoder().decode(input);
      return ArrowConverters$.MODULE$.fromIPCStreamWithIterator(stream, context)._1();
    }
    Iterator<InternalRow> rows = scan.compute(new FilePartition(0, files(input)), context);
    return columnar ? new Rows(rows) : rows;
  }

  /** The rows of batches of columns, as which Parquet files are read. */
  private static final class Rows extends AbstractIterator<InternalRow> {
    private final Iterator<?> batches;
    private java.util.Iterator<InternalRow> rows = Collections.emptyIterator();

    Rows(Iterator<?> batches) {
      this.batches = batches;
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext() && batches.hasNext()) {
        rows = ((ColumnarBatch) batches.next()).rowIterator();
      }
      return rows.hasNext();
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return rows.next();
    }
  }

  private PartitionedFile[] files(String input) {
    JsonNode listed;
    try {
      listed = JSON.readTree(input);
    } catch (IOException error) {
      throw new IllegalStateException("the local property " + property + " cannot be read", error);
    }
    PartitionedFile[] files = new PartitionedFile[listed.size()];
    for (int i = 0; i < files.length; i++) {
      JsonNode file = listed.get(i);
      long size = file.get(1).asLong();
      Path path = new Path(fileSystem.getScheme(), fileSystem.getAuthority(), file.get(0).asText());
      files[i] =
          new PartitionedFile(
              InternalRow.empty(),
              SparkPath.fromPath(path),
              0,
              size,
              new String[0],
              file.get(2).asLong(),
              size,
              Map$.MODULE$.empty());
    }
    return files;
  }

  private static final class Single implements Partition, Serializable {
    @Override
    public int index() {
      return 0;
    }

    // Scala's trait asks for them.
    @Override
    public int hashCode() {
      return 0;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Single;
    }
  }
}
